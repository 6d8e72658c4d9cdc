"""One decoder for Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE: what happens between token ids and logits.

    ids -> embedding -> N x [x + attention(norm(x)), x + mlp(norm(x))] -> norm -> head -> logits

It sees one step as T tokens in a row, of however many requests. Only attention needs to know where one sequence ends
and the next begins; it is handed down ready-made, never global. So are the kernels (`context.ops`): what is written
below step by step, as in a textbook, they may do in one go (`Ops.project_and_cache`, `Ops.run_layers`).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.cache import KVCache, write_kv
from minillm.kernels.ops import ForwardContext, Ops, QKNorms, rms_norm, rotate_
from minillm.model.config import ModelConfig
from minillm.model.linear import Linear
from minillm.model.moe import ExpertRouter, MoE
from minillm.model.rope import RotaryEmbedding


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, delta: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm. Both read the same bytes, so they're one operation."""
        return ops.add_rms_norm(x, delta, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023): n_heads queries share n_kv_heads keys and values.

    The projections around it, and the cache. How queries look at keys is the step's backend's: see `Layer.forward`.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        # One matrix for queries, keys and values: one pass over x instead of three.
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv_proj = Linear(config.hidden_size, rows, config.qkv_bias, dtype, device)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.hidden_size, config.o_bias, dtype, device)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None

    def project_and_cache(self, x: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """Project the tokens x [T, hidden], turn q and k by their positions, and write k and v to the cache.

        Returns:
            q [T, n_heads, d]
        """
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)  # [T, heads of q, of k, of v; d]
        q, k, _ = qkv.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)  # views: still in qkv
        if self.q_norm is not None and self.k_norm is not None:
            q.copy_(self.q_norm(q))
            k.copy_(self.k_norm(k))
        rotate_(qkv[:, : -self.num_kv_heads], context.cos, context.sin)  # q and k, which lie side by side
        kv = qkv[:, self.num_heads :].unflatten(1, (2, self.num_kv_heads))
        # Written before any token attends: it sees itself, and finds earlier tokens of this step in the cache.
        write_kv(kv, kv_cache, context.slot_mapping)
        return q

    @property
    def qk_norms(self) -> QKNorms | None:
        """The norms of queries and keys (Qwen3)."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm.weight, self.k_norm.weight, self.q_norm.eps


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), known as SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = Linear(hidden, 2 * inner, config.mlp_bias, dtype, device)
        self.down_proj = Linear(inner, hidden, config.mlp_bias, dtype, device)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        return self.down_proj(ops.swiglu(self.gate_up_proj, x))


def make_mlp(config: ModelConfig, layer: int, dtype: torch.dtype, device: torch.device) -> MLP | MoE:
    """One MLP, or in a sparse layer many narrow ones."""
    if layer not in config.sparse_layers:
        return MLP(config, dtype, device)
    narrow = replace(config, intermediate_size=config.moe_intermediate_size)
    experts = (MLP(narrow, dtype, device) for _ in range(config.num_experts))
    return MoE(ExpertRouter(config, dtype, device), experts)


class Layer(nn.Module):
    """Attention mixes tokens, the MLP works on each alone; both add to the residual stream x.

    What a block adds (`delta`) is handed to the next norm, which adds it.
    """

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.attention = Attention(config, dtype, device)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = make_mlp(config, layer, dtype, device)

    def forward(self, x: Tensor, delta: Tensor, kv_cache: KVCache, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Norm; q, k, v; attention; projection; norm; MLP. Returns the residual stream, and what the MLP adds to it."""
        x, q = self.up_to_attention(x, delta, kv_cache, context)
        o = context.attention.attend(q, kv_cache, self.attention.scale)
        return self.after_attention(x, o, context)

    def up_to_attention(
        self, x: Tensor, delta: Tensor, kv_cache: KVCache, context: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """The residual stream, and q [T, n_heads, d]; k and v are in the cache. Each token is on its own, as it is in
        `after_attention`."""
        x, normed = self.input_norm.add_and_norm(x, delta, context.ops)
        return x, context.ops.project_and_cache(self.attention, normed, kv_cache, context)

    def after_attention(self, x: Tensor, o: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """The residual stream, and what the MLP adds to it; o [T, n_heads, d] is what the tokens have gathered."""
        x, normed = self.post_attention_norm.add_and_norm(x, self.attention.o_proj(o.flatten(1)), context.ops)
        return x, self.mlp(normed, context.ops)


class Layers(nn.ModuleList):
    """One layer after the other."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(Layer(config, i, dtype, device) for i in range(config.num_layers))

    def __iter__(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], super().__iter__())


class LayeredModel(nn.Module):
    """What a decoder and a draft head have in common."""

    layers: Layers
    activation_dtype: torch.dtype


class Decoder(LayeredModel):
    """The whole model. Weights are uninitialized until the loader fills them.

    Args:
        config: its shape.
        dtype: what weights and activations are stored in (but see `minillm.model.cpu.compute_in_float32`).
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.activation_dtype = dtype
        self.embed_tokens: nn.Parameter | None = nn.Parameter(
            torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device), False
        )
        """[vocab, hidden]; None = the rows of a quantized head serve."""
        self.layers = Layers(config, dtype, device)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, False, dtype, device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens
        self.rope = RotaryEmbedding(config.rope, config.head_dim, device)

    def forward(
        self, token_ids: Tensor, positions: Tensor, kv_caches: Sequence[KVCache], attention: AttentionBackend, ops: Ops
    ) -> Tensor:
        """Logits [T, V] after every token. A step puts only those rows through the head that sample: it is as wide as
        the vocabulary."""
        return self.lm_head(self.hidden_states(token_ids, positions, kv_caches, attention, ops)[0])

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[KVCache],
        attention: AttentionBackend,
        ops: Ops,
        depths: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        """[T, hidden] what goes into the head after each token; and what draft heads read: the residual stream at each
        depth, side by side [T, len(depths) * hidden], or without depths the same once more.

        Args:
            token_ids, positions: [T] integers.
            kv_caches: one per layer, [num_blocks, block_size, 2, n_kv_heads, d].
            attention: the step's: knows which of the T tokens belong together, and their blocks.
            ops: how the small operations are done.
            depths: numbers of layers, ascending. Where all layers run in one call, that is split there.
        """
        cos, sin = self.rope.angles(positions, self.activation_dtype)
        context = ForwardContext(cos, sin, attention.metadata.slot_mapping, attention, ops)
        x = self.embed(token_ids)
        delta, layers = torch.zeros_like(x), tuple(self.layers)
        streams: list[Tensor] = []
        for start, end in itertools.pairwise((0, *depths, len(layers))):
            if start < end:
                x, delta = ops.run_layers(layers[start:end], x, delta, kv_caches[start:end], context)
            if len(streams) < len(depths):
                streams.append(x + delta)
        hidden = self.norm.add_and_norm(x, delta, ops)[1]
        return hidden, torch.cat(streams, dim=-1) if streams else hidden

    def write_logits(self, hidden: Tensor, logits: Tensor) -> None:
        """What the head makes of hidden states [R, hidden], in the memory of logits [R, V]. A plain head writes them
        there itself: a copy would go through a vocabulary's width twice more for each row."""
        if isinstance(self.lm_head, Linear):
            torch.mm(hidden, self.lm_head.weight.t(), out=logits)
        else:
            logits.copy_(self.lm_head(hidden))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the embedding table [T, hidden], as activations."""
        if self.embed_tokens is not None:
            return F.embedding(token_ids, self.embed_tokens).to(self.activation_dtype)
        head: Any = self.lm_head  # quantized, where the table is gone
        return head.rows(token_ids).to(self.activation_dtype)

    @property
    def sparse_mlps(self) -> list[MoE]:
        """The layers' mixtures of experts."""
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, MoE)]

    def move_to(self, device: torch.device) -> None:
        """Everything, to another device."""
        self.to(device)
        self.rope.frequencies = self.rope.frequencies.to(device)

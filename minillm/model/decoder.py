"""One decoder for Llama, Mistral, Qwen2 and Qwen3: what happens between token ids and logits.

    ids -> embedding -> N x [x + attention(norm(x)), x + mlp(norm(x))] -> norm -> head -> logits

It sees one step as T tokens in a row, whoever they belong to. Only attention needs to know where one
sequence ends and the next begins; it is handed down ready-made, never global.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels.attention.base import AttentionBackend, AttentionFn
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import Ops, Rotation
from minillm.model.config import ModelConfig
from minillm.model.linear import Linear, pack_linears
from minillm.model.rope import RotaryEmbedding


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share."""

    rotation: Rotation
    attention: AttentionFn
    ops: Ops


class RMSNorm(nn.Module):
    """The weight of x / rms(x) * weight, over the last dimension (Zhang & Sennrich 2019). Ops computes it."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), False)
        self.eps = eps


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023): n_heads queries share n_kv_heads keys and values."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        # One matrix for queries, keys and values: one pass over x instead of three.
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv_proj = Linear(config.hidden_size, rows, config.qkv_bias, dtype, device)
        self.o_proj = Linear(config.num_heads * config.head_dim, config.hidden_size, config.o_bias, dtype, device)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype, device) if config.qk_norm else None

    def forward(self, x: Tensor, kv_cache: KVCache, step: Pass) -> Tensor:
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        query = step.ops.rotate_and_write(qkv, self.num_kv_heads, norms, step.rotation, kv_cache)
        return self.o_proj(step.attention.attend(query, kv_cache, self.scale).flatten(1))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), known as SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = Linear(hidden, 2 * inner, config.mlp_bias, dtype, device)
        self.down_proj = Linear(inner, hidden, config.mlp_bias, dtype, device)

    def forward(self, x: Tensor, step: Pass) -> Tensor:
        return self.down_proj(step.ops.silu_mul(self.gate_up_proj(x)))


class Layer(nn.Module):
    """Attention mixes tokens, the MLP works on each alone; both add to the residual stream x.

    What a block adds (`delta`) is handed to the next one, which adds it: adding and norming read the
    same bytes, so they are one operation.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.attention = Attention(config, dtype, device)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.mlp = MLP(config, dtype, device)

    def forward(self, x: Tensor, delta: Tensor, kv_cache: KVCache, step: Pass) -> tuple[Tensor, Tensor]:
        x, normed = step.ops.add_rms_norm(x, delta, self.input_norm.weight, self.input_norm.eps)
        delta = self.attention(normed, kv_cache, step)
        x, normed = step.ops.add_rms_norm(x, delta, self.post_attention_norm.weight, self.post_attention_norm.eps)
        return x, self.mlp(normed, step)


class Decoder(nn.Module):
    """The whole model. Weights are uninitialised until the loader fills them.

    Args:
        config: its shape.
        dtype: of weights and of activations (but see `optimise_for_cpu`).
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.activation_dtype = dtype
        self.embed_tokens: nn.Parameter | None = nn.Parameter(
            torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device), False
        )
        """None: the rows of a quantized head."""
        layers = nn.ModuleList(Layer(config, dtype, device) for _ in range(config.num_layers))
        self.layers = cast(Sequence[Layer], layers)  # A ModuleList does not say of what.
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, False, dtype, device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens
        self.rope = RotaryEmbedding(config.rope, config.head_dim, device)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[KVCache],
        attention: AttentionBackend,
        ops: Ops,
        logit_rows: Tensor | None = None,
    ) -> Tensor:
        """Logits [R, V] after the tokens at `logit_rows`; keys and values of all T go to the cache.

        Args:
            logit_rows: [R] integers: only these rows go through the head, which is as wide as the
                vocabulary. None = all.
        """
        return self.lm_head(self.hidden_states(token_ids, positions, kv_caches, attention, ops, logit_rows))

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[KVCache],
        attention: AttentionBackend,
        ops: Ops,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[R, hidden] what goes into the head after the tokens at `rows` (None = all T).

        Args:
            token_ids, positions: [T] integers.
            kv_caches: one per layer, [num_blocks, block_size, 2, n_kv_heads, d].
            attention: the step's: knows which of the T tokens belong together, and their blocks.
            ops: how the small operations are done.
        """
        rotation = Rotation(*self.rope.angles(positions, self.activation_dtype), attention.metadata.slot_mapping)
        step = Pass(rotation, attention, ops)
        x = self.embed(token_ids)
        delta = torch.zeros_like(x)  # nothing to add yet
        x, delta = ops.run_layers(self.layers, x, delta, kv_caches, step)
        if rows is not None:
            x, delta = x[rows], delta[rows]
        return ops.add_rms_norm(x, delta, self.norm.weight, self.norm.eps)[1]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the embedding table [T, hidden], as activations."""
        if self.embed_tokens is not None:
            return F.embedding(token_ids, self.embed_tokens).to(self.activation_dtype)
        head: Any = self.lm_head  # quantized, where the table is gone
        return head.rows(token_ids).to(self.activation_dtype)

    def optimise_for_cpu(self) -> None:
        """Pack 16-bit weights for the CPU where that works, and compute with float32 activations.

        16-bit activations would be widened and rounded again around every operation. The embedding table
        stays plain; a tied head shares it.
        """
        if pack_linears(self):
            self.compute_in_float32()

    def compute_in_float32(self) -> None:
        """Activations are float32 from now on, whatever the weights are; the layers' matrices are made for it."""
        self.activation_dtype = torch.float32
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.weight.data = module.weight.data.float()

    def move_to(self, device: torch.device) -> None:
        """Everything, to another device."""
        self.to(device)
        self.rope.frequencies = self.rope.frequencies.to(device)

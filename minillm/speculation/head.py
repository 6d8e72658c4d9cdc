"""The draft head: one decoder layer on the model's own hidden states (Li et al. 2024, EAGLE).

A hidden state h[t] is what the model puts into its output head after token t. From it and the token x[t+1] that was
chosen there, the head foretells h[t+1], and from that x[t+2]:

    [norm(h[t]); norm(embedding of x[t+1])] -> fuse -> decoder layer -> norm -> ~h[t+1] -> output head

Fed its own ~h[t+1] and x[t+2], it goes on. The model's states say far more about what comes next than the tokens do:
one layer is enough where a draft model needs many.

Embedding and output head are the model's. Of the output head only the rows of the most frequent tokens are used: it
would otherwise cost several times what the layer costs.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import ForwardContext
from minillm.model.config import ModelConfig
from minillm.model.decoder import LayeredModel, Layers, RMSNorm
from minillm.model.linear import Linear
from minillm.model.rope import RotaryEmbedding


class AnyHead(LayeredModel):
    """What a proposer runs, whatever the head is made of.

    Args:
        config: its layer's.
        num_tokens: N, how many tokens it can name.
    """

    depths: tuple[int, ...] = ()
    """What it reads of the model, see HiddenStateReader."""

    def __init__(self, config: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.activation_dtype = dtype
        self.layers = Layers(config, dtype, device)
        """The head's one layer."""
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self.rope = RotaryEmbedding(config.rope, config.head_dim, device)
        self.embed_tokens = torch.empty(0)
        """[V, h]: the model's own, unless the head brings one."""
        self.output = Linear(config.hidden_size, num_tokens, False, dtype, device)
        self.token_ids: Tensor
        self.register_buffer("token_ids", torch.zeros(num_tokens, dtype=torch.int64, device=device))
        """[N] the token that each row of the output head stands for"""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Rows of the embedding table [T, h], as activations."""
        return F.embedding(token_ids, self.embed_tokens).to(self.activation_dtype)

    def features(self, shown: Tensor) -> Tensor:
        """[T, h] what `forward` begins with, from what the model has shown."""
        return shown

    def forward(self, hidden: Tensor, token_ids: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """[T, h]: the features that come next.

        Args:
            hidden: [T, h] features of the model, or those foretold.
            token_ids: [T] the tokens chosen there, of which the head is to see the consequences.
            kv_cache: [num_blocks, block_size, 2, n_kv_heads, d].
            context: turns by the positions of the features.
        """
        raise NotImplementedError

    def logits(self, foretold: Tensor) -> Tensor:
        """[T, N] of the tokens it can name, by what `forward` has foretold."""
        return self.output(foretold)


class DraftHead(AnyHead):
    """Our own draft head, described above.

    Weights are uninitialized until they are filled (head_file.py).

    Args:
        config: the model's that it drafts for; the layer has the shape of one of its layers, without biases or experts.
        num_tokens: N, how many tokens it can name.
        dtype: what weights and activations are stored in.
    """

    def __init__(self, config: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        config = dataclasses.replace(
            config, num_layers=1, qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=False, sparse_layers=()
        )
        size, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(config, num_tokens, dtype, device)
        self.hidden_norm = RMSNorm(size, eps, dtype, device)
        self.embedding_norm = RMSNorm(size, eps, dtype, device)
        self.fuse = Linear(2 * size, size, False, dtype, device)

    def attach(self, embed_tokens: Tensor, lm_head: Tensor) -> None:
        """Take embedding and output rows, both [V, h], from the model."""
        self.embed_tokens = embed_tokens.detach()
        self.output.weight.data.copy_(lm_head[self.token_ids])

    def forward(self, hidden: Tensor, token_ids: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """[T, h]: the hidden states that come next."""
        embedded = self.embed(token_ids)
        nothing = torch.zeros_like(embedded)
        _, hidden = self.hidden_norm.add_and_norm(hidden, nothing, context.ops)
        _, embedded = self.embedding_norm.add_and_norm(embedded, nothing, context.ops)
        x = self.fuse(torch.cat((hidden, embedded), dim=-1))
        x, delta = context.ops.run_layers(self.layers, x, nothing, [kv_cache], context)
        return self.norm.add_and_norm(x, delta, context.ops)[1]

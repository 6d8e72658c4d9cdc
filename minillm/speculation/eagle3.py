"""EAGLE-3's draft head (Li et al. 2025), as it is published for many models.

It reads the model's residual stream at three depths instead of its last hidden state. In training it's fed what it
foretells, as it is when it drafts: its authors saw later guesses accepted almost as often as the first.

    streams of token t, side by side -> fc -> feature f[t]
    [norm(embedding of x[t+1]); norm(f[t])] -> q, k, v -> attention, + f[t] -> MLP -> f[t+1] -> norm -> output head

The output head is its own, over the most frequent tokens. What goes on to the next guess is f[t+1] before its norm.
"""

import torch
from torch import Tensor

from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import ForwardContext
from minillm.model.config import ModelConfig
from minillm.model.decoder import RMSNorm
from minillm.model.linear import Linear
from minillm.speculation.head import AnyHead


class Eagle3Head(AnyHead):
    """Weights are uninitialized until they are filled (eagle3_file.py).

    Args:
        config: its own: a Llama of one layer.
        num_tokens: N, how many tokens it can name.
        depths: the model's layers before each stream that it reads.
        target_size: of those streams.
        norm_before_residual: the feature is normed before it's added to what attention gives.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_tokens: int,
        depths: tuple[int, ...],
        target_size: int,
        norm_before_residual: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(config, num_tokens, dtype, device)
        self.depths = depths
        self.norm_before_residual = norm_before_residual
        size = config.hidden_size
        self.fc = Linear(len(depths) * target_size, size, False, dtype, device)
        self.hidden_norm = RMSNorm(size, config.rms_norm_eps, dtype, device)
        [layer] = self.layers
        rows = layer.attention.qkv_proj.weight.shape[0]
        layer.attention.qkv_proj = Linear(2 * size, rows, config.qkv_bias, dtype, device)

    def features(self, shown: Tensor) -> Tensor:
        """[T, h] of streams side by side [T, len(depths) * target_size]."""
        return self.fc(shown)

    def forward(self, hidden: Tensor, token_ids: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        """[T, h]: the features that come next, not normed."""
        [layer] = self.layers
        embedded, nothing = self.embed(token_ids), torch.zeros_like(hidden)
        _, embedded = layer.input_norm.add_and_norm(embedded, nothing, context.ops)
        _, normed = self.hidden_norm.add_and_norm(hidden, nothing, context.ops)
        both = torch.cat((embedded, normed), dim=-1)
        q = context.ops.project_and_cache(layer.attention, both, kv_cache, context)
        o = context.attention.attend(q, kv_cache, layer.attention.scale)
        x, delta = layer.after_attention(normed if self.norm_before_residual else hidden, o, context)
        return x + delta

    def logits(self, foretold: Tensor) -> Tensor:
        """[T, N] of the tokens it can name."""
        return self.output(self.norm(foretold))

"""A draft head run over whole conversations at once, with gradients, and fed with what it foretells itself.

In use, only the first token of a draft is guessed from a hidden state of the model. The others are guessed from states
that the head has foretold, with errors it never meets if it is trained on the model's states alone. So it is run again
over its own output, as often as there are tokens in a draft (HASS, Zhang et al. 2024; "training-time test" in EAGLE-3,
Li et al. 2025):

    row t, pass 1: state h[t],   token x[t+1]  ->  ~h[t+1]
    row t, pass 2: state ~h[t+1], token x[t+2]  ->  ~h[t+2]     and so on

The context of row t in pass j is what it will be in use: entries from the model's states for rows up to t (pass 1),
then its own of passes 2 to j.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import ForwardContext, Ops, QKNorms
from minillm.speculation.head import DraftHead


class ConversationBatch(NamedTuple):
    """Parts of B conversations, from some token on to the end, padded to the longest; L states at most."""

    token_ids: Tensor
    """[B, L + 1] int64"""
    hidden: Tensor
    """[B, L, h] the model's, float32"""
    num_states: Tensor
    """[B] how many of the L are no padding"""
    first: Tensor
    """[B] position of the first token in its conversation"""

    @classmethod
    def of(cls, token_ids: Sequence[Tensor], hidden: Sequence[Tensor], first: Sequence[int]) -> "ConversationBatch":
        """Pad; for each conversation [n + 1] tokens and [n, h] states."""
        return cls(
            torch.nn.utils.rnn.pad_sequence(list(token_ids), batch_first=True).long(),
            torch.nn.utils.rnn.pad_sequence(list(hidden), batch_first=True).float(),
            torch.tensor([len(states) for states in hidden]),
            torch.tensor(first),
        )

    def to(self, device: torch.device) -> "ConversationBatch":
        return ConversationBatch(*(tensor.to(device) for tensor in self))


class DenseAttention(Ops):
    """The small operations and the attention of one `unroll`, with nothing done in place.

    In place of a KV cache it keeps the keys and values of every pass, [B, n_kv_heads, L, d] each.
    """

    def __init__(self, num_conversations: int) -> None:
        self.num_conversations = num_conversations
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x = x + delta
        return x, F.rms_norm(x, weight.shape, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rotate_and_write(
        self, qkv: Tensor, num_kv_heads: int, norms: QKNorms | None, kv_cache: KVCache, context: ForwardContext
    ) -> Tensor:
        num_turned = qkv.shape[1] - num_kv_heads
        turned, value = qkv.split((num_turned, num_kv_heads), dim=1)
        turned = turned * context.cos + turned.roll(turned.shape[-1] // 2, dims=-1) * context.sin
        query, key = turned.split((num_turned - num_kv_heads, num_kv_heads), dim=1)
        self.kept.append((self._by_head(key), self._by_head(value)))
        return query

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        """A row sees rows up to its own in pass 1, and itself in the later ones."""
        query = self._by_head(query)
        length, group = query.shape[2], query.shape[1] // self.kept[0][0].shape[1]
        see = torch.ones(length, length, dtype=torch.bool, device=query.device)
        visible = torch.cat([see.tril()] + [see.tril().triu()] * (len(self.kept) - 1), dim=1)
        key, value = (torch.cat(each, dim=2).repeat_interleave(group, dim=1) for each in zip(*self.kept))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
        return output.transpose(1, 2).flatten(0, 1)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B * L, n, d] to [B, n, L, d]."""
        return x.unflatten(0, (self.num_conversations, -1)).transpose(1, 2)


def unroll(
    head: DraftHead, batch: ConversationBatch, num_passes: int, dense: DenseAttention | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each pass j = 1, 2, ...: the foretold states ~h[t+j] [B, L, h], and [B, L] where there is a h[t+j].

    Args:
        dense: to look at the keys and values afterwards.
    """
    num_conversations, length, size = batch.hidden.shape
    dense = dense or DenseAttention(num_conversations)
    hidden, rows = batch.hidden, torch.arange(length, device=batch.hidden.device)
    for j in range(1, num_passes + 1):
        positions = (batch.first[:, None] + rows + j - 1).flatten()
        context = ForwardContext(*head.rope.angles(positions, head.activation_dtype), rows, dense, dense)
        token_ids = shifted(batch.token_ids, j, length)
        hidden = head(hidden.flatten(0, 1), token_ids.flatten(), batch.hidden, context)
        hidden = hidden.view(num_conversations, length, size)
        yield hidden, rows + j < batch.num_states[:, None]


def shifted(x: Tensor, by: int, length: int) -> Tensor:
    """Columns by, by + 1, ... of x [B, n, ...], padded with zeros to `length` of them."""
    x = x[:, by : by + length]
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1]))

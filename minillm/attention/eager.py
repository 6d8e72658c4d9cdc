"""Attention as the textbook has it, one sequence at a time. Read this one; run the other.

attention(q, k, v) = softmax(q k^T * scale + causal mask) v          (Vaswani et al. 2017)
"""

import torch
from torch import Tensor

from minillm.attention.base import AttentionBackend, blocks_for


class EagerAttention(AttentionBackend):
    """Builds the whole score matrix of every sequence: O(new tokens * context) memory."""

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        metadata = self.metadata
        output = torch.empty_like(query)
        for b, context_len in enumerate(metadata.context_lens):
            rows = slice(metadata.query_starts[b], metadata.query_starts[b + 1])
            # Follow the block table: the sequence's pages, laid end to end.
            pages = metadata.block_tables[b, : blocks_for(context_len, metadata.block_size)]
            keys, values = kv_cache[pages].flatten(0, 1)[:context_len].to(query.dtype).unbind(1)
            output[rows] = attend(query[rows], keys, values, scale, metadata.window)
        return output


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
    """Attention of one sequence's last n tokens over its whole context.

    Args:
        query: [n, n_heads, d].
        keys, values: [context, n_kv_heads, d]; the last n are the queries' own.
        window: see AttentionMetadata.
    Returns:
        [n, n_heads, d]
    """
    n, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    # Each key/value head serves a group of query heads.
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)

    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    query_positions = torch.arange(context_len - n, context_len, device=query.device)
    visible = visible_keys(query_positions, torch.arange(context_len, device=query.device), window)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def visible_keys(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """[n, context] bool: which keys each query sees: none in the future, none before its window."""
    distance = query_positions[:, None] - key_positions
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)

"""Attention as the textbook has it, one sequence at a time. Read this one; run the other.

attention(q, k, v) = softmax(q k^T * scale + causal mask) v          (Vaswani et al. 2017)
"""

import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, gather_blocks


class EagerAttention(AttentionBackend):
    """Builds the whole score matrix of every sequence: O(new tokens * context) memory."""

    quantized_caches = tuple(QUANTIZED_DTYPES.values())
    gathers = True
    sees_sinks = True

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        metadata = self.metadata
        output = torch.empty_like(query)
        for b, context_len in enumerate(metadata.context_lens):
            rows = slice(metadata.query_starts[b], metadata.query_starts[b + 1])
            # Follow the block table: the sequence's pages, laid end to end.
            pages, key_positions = metadata.context(b)
            context = gather_blocks(kv_cache, pages, query.dtype).flatten(0, 1)
            keys, values = context[: len(key_positions)].unbind(1)
            query_positions = torch.arange(context_len - len(query[rows]), context_len, device=query.device)
            visible = visible_keys(query_positions, key_positions, metadata.window, metadata.sinks)
            output[rows] = attend(query[rows], keys, values, scale, visible)
        return output


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, visible: Tensor | None = None) -> Tensor:
    """Attention of one sequence's last n tokens over its context.

    Args:
        query: [n, n_heads, d].
        keys, values: [context, n_kv_heads, d]; the last n are the queries' own.
        visible: [n, context] bool: which keys each query sees; None = all but those in the future.
    Returns:
        [n, n_heads, d]
    """
    n, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    # Each key/value head serves a group of query heads.
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)

    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    if visible is None:
        positions = torch.arange(context_len, device=query.device)
        visible = visible_keys(positions[context_len - n :], positions, None)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def visible_keys(query_positions: Tensor, key_positions: Tensor, window: int | None, sinks: int = 0) -> Tensor:
    """[n, context] bool: which keys each query sees: none in the future, none before its window but the sinks.

    Args:
        query_positions: [n]
        key_positions: [context], or [n, context] where queries have keys of their own.
    """
    distance = query_positions[:, None] - key_positions
    if window is None:
        return distance >= 0
    return (distance >= 0) & ((distance < window) | (key_positions < sinks))

"""Attention as the textbook has it, one sequence at a time. Read this one; run the other.

attention(q, k, v) = softmax(q k^T * scale + causal mask) v          (Vaswani et al. 2017)
"""

import torch
from torch import Tensor

from minillm.attention.base import AttentionMetadata, blocks_for, write_kv


class EagerAttention:
    """Builds the whole score matrix of every sequence: O(new tokens * context) memory."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata

    def __call__(self, query: Tensor, kv: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        metadata = self.metadata
        write_kv(kv, kv_cache, metadata.slot_mapping)
        output = torch.empty_like(query)
        for b, context_len in enumerate(metadata.context_lens):
            rows = slice(metadata.query_starts[b], metadata.query_starts[b + 1])
            # Follow the block table: the sequence's pages, laid end to end.
            pages = metadata.block_tables[b, : blocks_for(context_len, metadata.block_size)]
            keys, values = kv_cache[pages].flatten(0, 1)[:context_len].to(query.dtype).unbind(1)
            output[rows] = attend(query[rows], keys, values, scale)
        return output


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attention of one sequence's last n tokens over its whole context.

    Args:
        query: [n, n_heads, d].
        keys, values: [context, n_kv_heads, d]; the last n are the queries' own.
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
    key_positions = torch.arange(context_len, device=query.device)
    in_the_future = key_positions > query_positions[:, None]  # [n, context]
    weights = scores.masked_fill(in_the_future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)

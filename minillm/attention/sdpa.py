"""Attention through PyTorch's fused kernel, which never builds the score matrix (FlashAttention, Dao 2023).

The kernel knows nothing of pages, so each sequence's pages are gathered first. That copy is the price
of using a stock kernel; a paged one (triton_paged.py, FlashAttention-3) reads the pages where they lie.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.attention.base import AttentionBackend, AttentionMetadata, blocks_for
from minillm.attention.eager import visible_keys
from minillm.transfer import to_device

MAX_PADDING = 1.5
"""Decodes share a kernel call while the longest context in it is at most this many times the shortest."""
MAX_MASK_ELEMENTS = 1 << 23
"""A causal mask is made for at most this many (query, key) pairs at once: 32 MB in float32."""


class SDPAAttention(AttentionBackend):
    """Decodes run in batches of similar context length, prefills one by one."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        self.decodes = group_decodes(metadata)
        self.prefills = [Prefill(metadata, b) for b in range(metadata.num_decodes, len(metadata.context_lens))]

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        # The cache's dtype decides: widening its keys and values would cost more than the attention.
        query_dtype, query = query.dtype, query.to(kv_cache.dtype)
        parts = [*self.decodes, *self.prefills]
        if len(parts) == 1:
            return parts[0](query, kv_cache, scale).to(query_dtype)
        output = torch.empty_like(query)
        for part in parts:
            output[part.rows] = part(query[part.rows], kv_cache, scale)
        return output.to(query_dtype)


@dataclass(slots=True)
class DecodeGroup:
    """n sequences with one new token each, padded to the longest context among them."""

    rows: Tensor | slice
    """Their n rows of the step's tokens."""
    pages: Tensor
    """[n * max_blocks] integers, sequence after sequence."""
    context_len: int
    """The longest."""
    mask: Tensor | None
    """[n, 1, 1, context_len] bool, False on padding; None if all are equally long."""

    def __call__(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        n, _, head_dim = query.shape
        num_kv_heads = kv_cache.shape[3]
        context = kv_cache.index_select(0, self.pages).view(n, -1, 2, num_kv_heads, head_dim)[:, : self.context_len]
        keys, values = context.permute(2, 0, 3, 1, 4)  # [n, n_kv_heads, context_len, d] each
        # The query heads of a group attend to the same keys and values. Seen as the rows of one query
        # [n, n_kv_heads, group, d] they read them once, not once each.
        query = query.reshape(n, num_kv_heads, -1, head_dim)
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        return output.reshape(n, -1, head_dim)


def group_decodes(metadata: AttentionMetadata) -> list[DecodeGroup]:
    """Put decodes of similar context length together: few kernel calls, little padding."""
    lens, device = metadata.context_lens, metadata.block_tables.device
    groups: list[list[int]] = []
    for b in sorted(range(metadata.num_decodes), key=lambda b: lens[b]):
        if groups and lens[b] <= MAX_PADDING * lens[groups[-1][0]]:
            groups[-1].append(b)
        else:
            groups.append([b])

    result = []
    for group in groups:
        longest = lens[group[-1]]
        everyone = len(group) == metadata.num_decodes
        rows = slice(0, len(group)) if everyone else to_device(np.array(sorted(group)), device)
        pages = metadata.block_tables[rows, : blocks_for(longest, metadata.block_size)].reshape(-1)
        context_lens = [lens[b] for b in sorted(group)]
        result.append(DecodeGroup(rows, pages, longest, decode_mask(context_lens, metadata.window, device)))
    return result


def decode_mask(context_lens: list[int], window: int | None, device: torch.device) -> Tensor | None:
    """[n, 1, 1, longest] bool: the keys that each sequence's one query sees; None if it is all of them."""
    longest = max(context_lens)
    if min(context_lens) == longest and (window is None or window >= longest):
        return None
    last = to_device(np.array(context_lens), device) - 1
    return visible_keys(last, torch.arange(longest, device=device), window)[:, None, None]


class Prefill:
    """The n new tokens of one sequence."""

    def __init__(self, metadata: AttentionMetadata, b: int) -> None:
        self.rows = slice(metadata.query_starts[b], metadata.query_starts[b + 1])
        self.context_len = metadata.context_lens[b]
        self.window = metadata.window
        self.pages = metadata.block_tables[b, : blocks_for(self.context_len, metadata.block_size)]

    def __call__(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        n, context_len = query.shape[0], self.context_len
        query = query.transpose(0, 1)[None]  # [1, n_heads, n, d]
        context = kv_cache[self.pages].flatten(0, 1)[:context_len]
        keys, values = context.permute(1, 2, 0, 3)[:, None]  # [1, n_kv_heads, context, d] each
        if n == context_len and (self.window is None or self.window >= n):
            output = F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale, enable_gqa=True)
            return output[0].transpose(0, 1)
        # Part of the context was computed before. SDPA's own causal mask starts at the upper left corner,
        # this one has to end at the lower right. Taken in slices, so that it stays small.
        outputs = []
        rows = max(1, MAX_MASK_ELEMENTS // context_len)
        for start in range(0, n, rows):
            part = query[:, :, start : start + rows]
            first = context_len - n + start
            end = first + part.shape[2]  # keys the slice's last token may see
            positions = torch.arange(end, device=query.device)
            mask = visible_keys(positions[first:], positions, self.window)
            outputs.append(
                F.scaled_dot_product_attention(
                    part, keys[:, :, :end], values[:, :, :end], attn_mask=mask, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(outputs, dim=2)[0].transpose(0, 1)

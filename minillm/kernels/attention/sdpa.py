"""Attention through PyTorch's fused kernel, which never builds the score matrix (FlashAttention, Dao 2023).

The kernel knows nothing of pages, so each sequence's pages are gathered first. That copy is the price
of using a stock kernel; a paged one (triton/attention.py, FlashAttention-3) reads the pages where they lie.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.core.block_pool import blocks_for
from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, computing_dtype, gather_blocks
from minillm.kernels.attention.eager import visible_keys

MAX_PADDING = 1.5
"""Decodes share a kernel call while the longest context in it is at most this many times the shortest."""
MAX_MASK_ELEMENTS = 1 << 23
"""A causal mask is made for at most this many (query, key) pairs at once: 32 MB in float32."""


class SDPAAttention(AttentionBackend):
    """Decodes run in batches of similar context length, prefills one by one."""

    quantized_caches = tuple(QUANTIZED_DTYPES.values())
    gathers = True
    sees_sinks = True

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        self.decodes = group_decodes(metadata)
        self.prefills = [Prefill(metadata, b) for b in range(metadata.num_decodes, len(metadata.context_lens))]

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        query_dtype, query = query.dtype, query.to(computing_dtype(kv_cache, query))
        parts: list[DecodeGroup | Prefill] = [*self.decodes, *self.prefills]
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
    num_keys: int
    """Keys that are gathered of the longest sequence."""
    mask: Tensor | None
    """[n, 1, 1, num_keys] bool, False on padding; None if all are seen."""

    def __call__(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        n, _, head_dim = query.shape
        num_kv_heads = kv_cache.shape[3]
        context = gather_blocks(kv_cache, self.pages, query.dtype)
        context = context.view(n, -1, 2, num_kv_heads, head_dim)[:, : self.num_keys]
        keys, values = context.permute(2, 0, 3, 1, 4)  # [n, n_kv_heads, num_keys, d] each
        # The query heads of a group attend to the same keys and values. Seen as the rows of one query
        # [n, n_kv_heads, group, d] they read them once, not once each.
        query = query.reshape(n, num_kv_heads, -1, head_dim)
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        return output.reshape(n, -1, head_dim)


def group_decodes(metadata: AttentionMetadata) -> list[DecodeGroup]:
    """Put decodes of similar context length together: few kernel calls, little padding."""
    num_decodes, lens = metadata.num_decodes, metadata.context_lens
    if metadata.window is not None:  # what they read of it
        lens = [len(metadata.live_blocks(b)) * metadata.block_size for b in range(num_decodes)]
    groups: list[list[int]] = []
    for b in sorted(range(num_decodes), key=lambda b: lens[b]):
        if groups and lens[b] <= MAX_PADDING * lens[groups[-1][0]]:
            groups[-1].append(b)
        else:
            groups.append([b])

    result = []
    for group in map(sorted, groups):
        everyone = len(group) == num_decodes
        rows = slice(0, num_decodes) if everyone else to_device(np.array(group), metadata.block_tables.device)
        make = decode_group if metadata.window is None else windowed_decode_group
        result.append(make(metadata, group, rows))
    return result


def decode_group(metadata: AttentionMetadata, group: list[int], rows: Tensor | slice) -> DecodeGroup:
    """A group of decodes that see their whole contexts."""
    lens, device = [metadata.context_lens[b] for b in group], metadata.block_tables.device
    longest = max(lens)
    pages = metadata.block_tables[rows, : blocks_for(longest, metadata.block_size)].reshape(-1)
    mask = None
    if min(lens) < longest:
        last = to_device(np.array(lens), device) - 1
        mask = visible_keys(last, torch.arange(longest, device=device), None)[:, None, None]
    return DecodeGroup(rows, pages, longest, mask)


def windowed_decode_group(metadata: AttentionMetadata, group: list[int], rows: Tensor | slice) -> DecodeGroup:
    """A group of decodes that see a window each: only its blocks are gathered."""
    lives = [metadata.live_blocks(b) for b in group]
    width, size, device = max(map(len, lives)), metadata.block_size, metadata.block_tables.device
    blocks = np.array([live + live[-1:] * (width - len(live)) for live in lives])
    positions = (blocks[..., None] * size + np.arange(size)).reshape(len(group), -1)
    for row, live in zip(positions, lives):
        row[len(live) * size :] = np.iinfo(positions.dtype).max  # padding lies in the future
    sequences = np.array(group)[:, None]
    pages = metadata.block_tables[to_device(sequences, device), to_device(blocks, device)].reshape(-1)
    last = to_device(np.array([metadata.context_lens[b] for b in group]), device) - 1
    mask = visible_keys(last, to_device(positions, device), metadata.window, metadata.sinks)
    return DecodeGroup(rows, pages, width * size, mask[:, None, None])


class Prefill:
    """The n new tokens of one sequence."""

    def __init__(self, metadata: AttentionMetadata, b: int) -> None:
        self.rows = slice(metadata.query_starts[b], metadata.query_starts[b + 1])
        self.window, self.sinks = metadata.window, metadata.sinks
        self.pages, self.key_positions = metadata.context(b)

    def __call__(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        n, num_keys = query.shape[0], len(self.key_positions)
        query = query.transpose(0, 1)[None]  # [1, n_heads, n, d]
        context = gather_blocks(kv_cache, self.pages, query.dtype).flatten(0, 1)[:num_keys]
        keys, values = context.permute(1, 2, 0, 3)[:, None]  # [1, n_kv_heads, num_keys, d] each
        if n == num_keys and (self.window is None or self.window >= n):
            output = F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale, enable_gqa=True)
            return output[0].transpose(0, 1)
        # Part of the context was computed before. SDPA's own causal mask starts at the upper left corner,
        # this one has to end at the lower right. Taken in slices, so that it stays small.
        outputs = []
        rows = max(1, MAX_MASK_ELEMENTS // num_keys)
        for start in range(0, n, rows):
            part = query[:, :, start : start + rows]
            end = num_keys - n + start + part.shape[2]  # keys the slice's last token may see
            positions = self.key_positions[:end]
            mask = visible_keys(positions[end - part.shape[2] :], positions, self.window, self.sinks)
            outputs.append(
                F.scaled_dot_product_attention(
                    part, keys[:, :, :end], values[:, :, :end], attn_mask=mask, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(outputs, dim=2)[0].transpose(0, 1)

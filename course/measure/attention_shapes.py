"""Batches for an attention backend without a model: made-up lengths, pages in random order, random keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.core.block_pool import blocks_for
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.model.arithmetic import causal_pairs


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The size of one layer's attention, in elements."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`batch` sequences, each with `new` new tokens after `cached` ones."""

    kind: str
    """decode, prefill, or extend: a prefill on a cached context."""
    batch: int
    new: int
    cached: int

    @property
    def context(self) -> int:
        """Tokens of one sequence that attention looks at, the new ones included."""
        return self.new + self.cached

    def kv_bytes(self, heads: HeadShape, element_size: int) -> int:
        """Bytes of one layer's keys and values, of all contexts."""
        return self.batch * self.context * 2 * heads.num_kv_heads * heads.head_dim * element_size

    def flops(self, heads: HeadShape) -> float:
        """FLOPs of q k^T and of weights times v, over all heads of one layer. A decode looks at its whole context."""
        pairs = self.context if self.new == 1 else causal_pairs(self.new, self.cached)
        return 4 * heads.num_heads * heads.head_dim * self.batch * pairs


def make_metadata(shape: Shape, block_size: int, device: torch.device, seed: int = 0) -> AttentionMetadata:
    """The batch as the runner would describe it. The last block of the cache is the null block."""
    blocks_each = blocks_for(shape.context, block_size)
    generator = torch.Generator().manual_seed(seed)
    # In random order: after an hour of serving, a sequence's pages lie anywhere.
    tables = torch.randperm(shape.batch * blocks_each, generator=generator).view(shape.batch, blocks_each)
    positions = torch.arange(shape.cached, shape.context)
    slots = tables[:, positions // block_size] * block_size + positions % block_size
    starts, lens = [b * shape.new for b in range(shape.batch + 1)], [shape.context] * shape.batch
    return AttentionMetadata(
        query_starts=starts,
        context_lens=lens,
        query_starts_tensor=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens_tensor=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=tables.to(device, torch.int32),
        slot_mapping=slots.flatten().to(device),
        num_decodes=shape.batch if shape.new == 1 else 0,
        block_size=block_size,
    )


def make_cache(
    shape: Shape, heads: HeadShape, block_size: int, dtype: torch.dtype, device: torch.device, seed: int
) -> Tensor:
    """One layer's KV cache, [num_blocks + 1, block_size, 2, n_kv_heads, d], filled with random numbers."""
    num_blocks = shape.batch * blocks_for(shape.context, block_size) + 1
    generator = torch.Generator(device).manual_seed(seed)
    size = (num_blocks, block_size, 2, heads.num_kv_heads, heads.head_dim)
    return torch.randn(size, generator=generator, device=device, dtype=dtype)


class PreparedAttention:
    """One backend on one batch: planned once, as a step does, then called as every layer does.

    Args:
        query: [T, n_heads, d]
    """

    def __init__(self, backend: type[AttentionBackend], metadata: AttentionMetadata, query: Tensor) -> None:
        self.attention = backend(metadata)
        self.query = query
        self.scale = query.shape[-1] ** -0.5

    def __call__(self, kv_cache: Tensor) -> Tensor:
        return self.attention.attend(self.query, kv_cache, self.scale)

"""Attention on a CPU with our own C++: all decodes together (attention.cpp), prefills one by one (prefill.cpp).

PyTorch's kernel wants each sequence's pages gathered and padded first, and its bfloat16 is slow on CPUs
without bfloat16 instructions. These read the pages where they lie.
"""

import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache, parts_of
from minillm.kernels.attention.sdpa import Prefill, SDPAAttention
from minillm.kernels.cpu import NativeKernels, address, native_kernels

LANES, MAX_GROUP, MAX_DIM = 16, 16, 256
"""What attention.cpp is written for."""


class NativeAttention(AttentionBackend):
    """Decodes and prefills in C++; but prefills through SDPA where the cache is quantized or has a window."""

    device_types = ("cpu",)
    dtypes = (torch.bfloat16,)
    quantized_caches = (torch.int8,)
    sees_sinks = True

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        self.prefills = [Prefill(metadata, b) for b in range(metadata.num_decodes, len(metadata.context_lens))]

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        if not suits(query.dtype, query.shape[1], query.shape[2], kv_cache):
            return SDPAAttention(self.metadata).attend(query, kv_cache, scale)
        n = self.metadata.num_decodes
        output = torch.empty(query.shape, dtype=torch.float32)
        if n:
            attend_decodes(query[:n], kv_cache, self.metadata, scale, output)
        for b, part in enumerate(self.prefills, n):
            if isinstance(kv_cache, Tensor) and self.metadata.window is None:
                attend_prefill(query[part.rows], kv_cache, self.metadata, b, scale, output[part.rows])
            else:
                output[part.rows] = part(query[part.rows], kv_cache, scale)
        return output

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        if reason := super().missing(device):
            return reason
        why = "it needs Linux, and a C++ compiler (apt install g++) that passes a self-test: see `minillm doctor`"
        return None if native_kernels() else why


def suits(dtype: torch.dtype, num_heads: int, head_dim: int, kv_cache: KVCache) -> bool:
    """Whether the C++ handles queries of this dtype and these heads, and this cache."""
    return (
        native_kernels() is not None
        and dtype == torch.float32
        and parts_of(kv_cache)[0].dtype in (torch.bfloat16, torch.int8)
        and head_dim % LANES == 0
        and head_dim <= MAX_DIM
        and num_heads // kv_cache.shape[3] <= MAX_GROUP
    )


def attend_decodes(query: Tensor, kv_cache: KVCache, metadata: AttentionMetadata, scale: float, output: Tensor) -> None:
    """Attention of n decodes, the batch's first: query [n, n_heads, d]; writes output [n, n_heads, d]."""
    kernels, query, numbers, scales, sizes = for_kernels(query, kv_cache)
    tables, n = metadata.block_tables, len(query)
    tensors = (query, numbers, scales, tables, metadata.context_lens_tensor, output)
    sizes = (n, *sizes, tables.stride(0), metadata.window or 0, metadata.sinks)
    kernels.attend_decodes[numbers.dtype](*map(address, tensors), *sizes, scale)


def attend_prefill(
    query: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, b: int, scale: float, output: Tensor
) -> None:
    """Attention of sequence b's n new tokens: query [n, n_heads, d]; writes output [n, n_heads, d]."""
    kernels, query, numbers, _, sizes = for_kernels(query, kv_cache)
    tensors = (query, numbers, metadata.block_tables[b], output)
    kernels.attend_prefill(*map(address, tensors), len(query), metadata.context_lens[b], *sizes, scale)


def for_kernels(
    query: Tensor, kv_cache: KVCache
) -> tuple[NativeKernels, Tensor, Tensor, Tensor | None, tuple[int, ...]]:
    """The C++; the query, heads side by side; the cache's parts; and the sizes that both functions want."""
    num_heads, head_dim = query.shape[1:]
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    (numbers, scales), kernels = parts_of(kv_cache), native_kernels()
    assert kernels is not None, "see `suits`"
    return kernels, query, numbers, scales, (query.stride(0), num_heads, numbers.shape[3], head_dim, numbers.shape[1])

"""Attention on a CPU with our own C++ for the decodes (kernels/cpu/attention.cpp).

PyTorch's kernel wants each sequence's pages gathered and padded first, and its bfloat16 is slow on CPUs
without bfloat16 instructions. This one reads the pages where they lie.
"""

import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache, computing_dtype, parts_of
from minillm.kernels.attention.sdpa import Prefill, SDPAAttention
from minillm.kernels.cpu import address, has_matrix_units, native_kernels

LANES, MAX_GROUP, MAX_DIM = 16, 16, 256
"""What attention.cpp is written for."""


class NativeAttention(AttentionBackend):
    """Decodes in C++, all at once; prefills one by one through SDPA."""

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
        for part in self.prefills:
            output[part.rows] = part(query[part.rows].to(prefill_dtype(kv_cache, query)), kv_cache, scale)
        return output

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        if reason := super().missing(device):
            return reason
        return None if native_kernels() else "it needs Linux and a C++ compiler: apt install g++"


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


def prefill_dtype(kv_cache: KVCache, query: Tensor) -> torch.dtype:
    """What to attend in with many queries: their float32, for which the cache is widened once. But the cache's dtype
    where the CPU has matrix units for it. Without them bfloat16 was measured to take 1.1 to 1.6 times as long."""
    return computing_dtype(kv_cache, query) if has_matrix_units() else query.dtype


def attend_decodes(query: Tensor, kv_cache: KVCache, metadata: AttentionMetadata, scale: float, output: Tensor) -> None:
    """Attention of n decodes, the batch's first: query [n, n_heads, d]; writes output [n, n_heads, d]."""
    n, num_heads, head_dim = query.shape
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    numbers, scales = parts_of(kv_cache)
    tables, kernels = metadata.block_tables, native_kernels()
    assert kernels is not None, "see `suits`"
    tensors = (query, numbers, scales, tables, metadata.context_lens_tensor, output)
    sizes = (n, query.stride(0), num_heads, numbers.shape[3], head_dim, numbers.shape[1], tables.stride(0))
    kernels.attend_decodes[numbers.dtype](*map(address, tensors), *sizes, metadata.window or 0, metadata.sinks, scale)

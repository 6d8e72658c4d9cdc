"""Attention on a CPU with our own C++ for the decodes (models/native/attention.cpp).

PyTorch's kernel wants each sequence's pages gathered and padded first, and its bfloat16 is slow on CPUs
without bfloat16 instructions. This one reads the pages where they lie.
"""

import torch
from torch import Tensor

from minillm.attention.base import AttentionBackend, AttentionMetadata
from minillm.attention.sdpa import Prefill, SDPAAttention
from minillm.models.native import native_kernels

LANES, MAX_GROUP, MAX_DIM = 16, 16, 256
"""What native/attention.cpp is written for."""


class NativeAttention(AttentionBackend):
    """Decodes in C++, all at once; prefills one by one through SDPA."""

    device_types = ("cpu",)
    dtypes = (torch.bfloat16,)

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        self.prefills = [Prefill(metadata, b) for b in range(metadata.num_decodes, len(metadata.context_lens))]

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        if not suits(query, kv_cache):
            return SDPAAttention(self.metadata).attend(query, kv_cache, scale)
        n = self.metadata.num_decodes
        output = torch.empty(query.shape, dtype=torch.float32)
        if n:
            metadata = self.metadata
            attend_decodes(
                query[:n],
                kv_cache,
                metadata.block_tables,
                metadata.context_lens_tensor,
                metadata.window,
                scale,
                output,
            )
        for part in self.prefills:
            output[part.rows] = part(query[part.rows].to(kv_cache.dtype), kv_cache, scale)
        return output

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        if reason := super().missing(device):
            return reason
        return None if native_kernels() else "it needs Linux and a C++ compiler: apt install g++"


def suits(query: Tensor, kv_cache: Tensor) -> bool:
    """Whether the C++ handles these heads and dtypes."""
    head_dim, group = query.shape[2], query.shape[1] // kv_cache.shape[3]
    dtypes = query.dtype == torch.float32 and kv_cache.dtype == torch.bfloat16
    return (
        native_kernels() is not None and dtypes and head_dim % LANES == 0 and head_dim <= MAX_DIM and group <= MAX_GROUP
    )


def attend_decodes(
    query: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    window: int | None,
    scale: float,
    output: Tensor,
) -> None:
    """Attention of n decodes: query [n, n_heads, d], int32 tables and lengths of n sequences (or more); writes
    output [n, n_heads, d]."""
    n, num_heads, head_dim = query.shape
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    native_kernels().attend_decodes(
        query.data_ptr(),
        kv_cache.data_ptr(),
        block_tables.data_ptr(),
        context_lens.data_ptr(),
        output.data_ptr(),
        n,
        query.stride(0),
        num_heads,
        kv_cache.shape[3],
        head_dim,
        kv_cache.shape[1],
        block_tables.stride(0),
        window or 0,
        scale,
    )

"""Two kernels for the two phases: FlashAttention-3 for prompts, our Triton kernel for decodes.

Prefill is arithmetic, which FlashAttention-3 does with Hopper's asynchronous tensor cores. Decode is reading, where
ours has less to prepare. On an H100 each was the faster at its own phase, or level (docs/measured.md). SGLang and
mini-sglang, too, let each phase have its own backend.
"""

from dataclasses import replace

import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.attention.flash import FlashAttention3
from minillm.kernels.triton.attention import Launch, TritonAttention


class HopperAttention(AttentionBackend):
    """Two backends that write into one output, each the rows of its own sequences."""

    device_types = ("cuda",)
    dtypes = FlashAttention3.dtypes
    capturable = True
    warm_up_steps = ((128, 128), (2048, 128))  # beside each a decode, by our own kernel

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        n = metadata.num_decodes
        self.decodes = Launch(0, n, 1) if n else None
        self.prompts = FlashAttention3(without_decodes(metadata)) if n < len(metadata.context_lens) else None

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        prompts = self.prompts
        output = torch.empty_like(query) if prompts is None else prompts.attend(query, kv_cache, scale)
        if self.decodes is not None:
            self.decodes(self.metadata, query, kv_cache, scale, output)
        return output

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        return FlashAttention3.missing(device) or TritonAttention.missing(device)


def without_decodes(metadata: AttentionMetadata) -> AttentionMetadata:
    """The sequences after the decodes. Their rows are still counted from the first of the batch, so no query needs to
    be copied, or moved: rows of decodes belong to no sequence, and what the output has there is not defined."""
    n = metadata.num_decodes
    return replace(
        metadata,
        query_starts=metadata.query_starts[n:],
        context_lens=metadata.context_lens[n:],
        query_starts_tensor=metadata.query_starts_tensor[n:],
        context_lens_tensor=metadata.context_lens_tensor[n:],
        block_tables=metadata.block_tables[n:],
        num_decodes=0,
    )

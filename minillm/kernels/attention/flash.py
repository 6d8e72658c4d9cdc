"""Other people's paged kernels behind our interface: FlashAttention-3 and FlashAttention-2.

Each is one call with our tensors under its own names. All want keys and values as two tensors
[num_blocks, block_size, n_kv_heads, d]. Our cache interleaves them, so they get two strided views of it:
the kernels take any strides as long as the last dimension is contiguous, and nothing is copied.

Both have run on an H100, FlashAttention-2 as docs/flash_attention_2 builds it (docs/measured.md). Signatures:
hopper/flash_attn_interface.py and flash_attn/flash_attn_interface.py in github.com/Dao-AILab/flash-attention.
"""

import importlib
import importlib.util
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache


class FlashBackend(AttentionBackend):
    """What they share. Tensor cores only, so 16-bit numbers only, in the query and in the cache."""

    device_types = ("cuda",)
    dtypes = (torch.float16, torch.bfloat16)
    capturable = True  # lengths are given as tensors; what the host chooses by is shapes

    module: ClassVar[str]
    """Where the kernel is imported from."""
    cure: ClassVar[str]
    """What to do if it is not there."""
    capability: ClassVar[tuple[int, ...]] = (8, 9, 10, 11, 12)
    """Major compute capabilities it is built for; 8 = Ampere, 9 = Hopper."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        self.max_query_len = metadata.max_query_len
        # Keys to see on the left and on the right of oneself; -1 = all.
        self.window = (-1 if metadata.window is None else metadata.window - 1, 0)

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        assert isinstance(kv_cache, Tensor)  # select_backend lets no quantized one come here
        return self.call(query, kv_cache[:, :, 0], kv_cache[:, :, 1], scale)

    def call(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """What `attend` gives, from keys and values [num_blocks, block_size, n_kv_heads, d] apart."""
        raise NotImplementedError

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        if reason := super().missing(device):
            return reason
        major = torch.cuda.get_device_capability(device)[0]
        if major not in cls.capability:
            built = " or ".join(f"{number}.x" for number in cls.capability)
            return f"it is built for GPUs of compute capability {built}, and this one has {major}.x: use triton"
        if importlib.util.find_spec(cls.module.split(".")[0]) is None:
            return f"the module {cls.module} is not installed: {cls.cure}"
        return None


class FlashAttention3(FlashBackend):
    """Shah et al. 2024. One call for decodes and prefills, pages of any size, Hopper only.

    num_splits=0: from shapes (longest query, width of the block table) the kernel derives the most parts
    that it may split the keys into, and its scheduler on the device takes fewer where a sequence is short.
    So eager runs and replays of a graph split the same way.
    """

    module = "flash_attn_interface"
    cure = "pip install tokenspeed-fa3 (CUDA 13), or build hopper/ of github.com/Dao-AILab/flash-attention"
    capability = (9,)

    def call(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        metadata = self.metadata
        return importlib.import_module(self.module).flash_attn_with_kvcache(
            query,
            keys,
            values,
            cache_seqlens=metadata.context_lens_tensor,
            page_table=metadata.block_tables,
            cu_seqlens_q=metadata.query_starts_tensor,
            max_seqlen_q=self.max_query_len,
            softmax_scale=scale,
            causal=True,
            window_size=self.window,
            num_splits=0,
        )


class FlashAttention2(FlashBackend):
    """Dao 2023, the flash-attn package. Pages of 256 tokens; decodes and the rest are a call each.

    docs/flash_attention_2 builds the part of it that is called here. On an H100 that agreed with eager attention in
    float32 in 402 cases, replays of CUDA graphs among them, for heads of 64 and 128. Tests without a GPU put a stand-in
    with the package's signatures in its place, and stand-ins for the kernels beneath our build.
    """

    block_size = 256
    block_size_step = 256
    module = "flash_attn"
    cure = "docs/gpu-box.md says how to build it: docs/flash_attention_2/build.sh for Hopper, or the extra [gpu]"

    @classmethod
    def head_dims(cls) -> tuple[int, ...] | None:
        return getattr(importlib.import_module(cls.module), "HEAD_DIMS", None)  # our build says it; upstream's has most

    def call(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        metadata, kernels = self.metadata, importlib.import_module(self.module)
        num_decodes = metadata.num_decodes
        shared = dict(softmax_scale=scale, causal=True)
        output = torch.empty_like(query)
        if num_decodes:  # this one splits the keys over several programs
            output[:num_decodes] = kernels.flash_attn_with_kvcache(
                query[:num_decodes, None],
                keys,
                values,
                cache_seqlens=metadata.context_lens_tensor[:num_decodes],
                block_table=metadata.block_tables[:num_decodes],
                # Nothing lies to the right of a last token. Only if both sides are open does the package make one tile
                # of the query heads that share a key head, and read its keys once for all of them.
                window_size=(self.window[0], -1),
                **shared,
            ).squeeze(1)
        if num_decodes < len(metadata.context_lens):
            output[num_decodes:] = kernels.flash_attn_varlen_func(
                query[num_decodes:],
                keys,
                values,
                cu_seqlens_q=metadata.query_starts_tensor[num_decodes:] - num_decodes,
                cu_seqlens_k=starts_of(metadata.context_lens_tensor[num_decodes:]),
                max_seqlen_q=self.max_query_len,
                # What the block table has room for: it depends on shapes only, unlike the longest length of a step.
                max_seqlen_k=metadata.block_tables.shape[1] * metadata.block_size,
                block_table=metadata.block_tables[num_decodes:],
                window_size=self.window,
                **shared,
            )
        return output


def starts_of(lengths: Tensor) -> Tensor:
    """Where each of the sequences begins, and the end of the last: [B] -> [B + 1] int32.

    Computed anew in every layer, on the device: a tensor made once a step would be stale in a CUDA graph.
    """
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))

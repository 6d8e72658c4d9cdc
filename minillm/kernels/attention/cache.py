"""One layer's KV cache: numbers as the model has them, or small ones with scales (EngineConfig.kv_cache_dtype).

Rounded keys and values are lossy. A scale for each token and head costs 2 bytes beside `d` numbers of one, and keeps
an unusual token from coarsening its neighbours.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from minillm.kernels.quantization import FP8, dtype_name, quantize

QUANTIZED_DTYPES = {"int8": torch.int8, "fp8": FP8}
SCALE_DTYPE = torch.bfloat16


class QuantizedKV(NamedTuple):
    """Keys and values: numbers x scales."""

    numbers: Tensor
    """[num_blocks, block_size, 2, n_kv_heads, d] int8 or float8_e4m3fn"""
    scales: Tensor
    """[num_blocks, block_size, 2, n_kv_heads] bfloat16"""

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def device(self) -> torch.device:
        return self.numbers.device


KVCache = Tensor | QuantizedKV
"""[num_blocks, block_size, 2, n_kv_heads, d]"""


def cache_dtype(wanted: str, model_dtype: torch.dtype) -> torch.dtype:
    """Dtype of the numbers in the cache: "auto" = the model's."""
    return QUANTIZED_DTYPES.get(wanted, model_dtype)


def parts_of(kv_cache: KVCache) -> tuple[Tensor, Tensor | None]:
    """A cache's numbers, and their scales if they are quantized."""
    return (kv_cache, None) if isinstance(kv_cache, Tensor) else kv_cache


def tensors_of(kv_cache: KVCache) -> tuple[Tensor, ...]:
    """The tensors of a cache, the first dimension being blocks; fp8 as bytes, which every operation can copy."""
    if isinstance(kv_cache, Tensor):
        return (kv_cache,)
    return kv_cache.numbers.view(torch.int8), kv_cache.scales


def as_kernels_read(kv_cache: KVCache) -> tuple[Tensor, Tensor, str]:
    """Numbers, scales, and "int8" or "fp8", which comes as bytes: no GPU before compute capability 8.9 has the type.

    A cache without scales, which is "", gives itself in their place; they are not read.
    """
    if isinstance(kv_cache, Tensor):
        return kv_cache, kv_cache, ""
    return kv_cache.numbers.view(torch.int8), kv_cache.scales, dtype_name(kv_cache.numbers.dtype)


def write_kv(kv: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
    """Scatter new keys and values [T, 2, n_kv_heads, d] into the paged cache, in place and in its dtype."""
    if isinstance(kv_cache, Tensor):
        parts: tuple[Tensor, ...] = (kv.to(kv_cache.dtype),)
    else:
        numbers, scales = quantize(kv, kv_cache.numbers.dtype, SCALE_DTYPE)
        parts = (numbers.view(torch.int8), scales)
    for target, part in zip(tensors_of(kv_cache), parts):
        target.view(-1, *part.shape[1:]).index_copy_(0, slot_mapping, part)


def gather_blocks(kv_cache: KVCache, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Some blocks [n] of the cache, [n, block_size, 2, n_kv_heads, d], in `dtype`."""
    if isinstance(kv_cache, Tensor):
        return kv_cache.index_select(0, blocks).to(dtype)
    numbers, scales = (part.index_select(0, blocks) for part in tensors_of(kv_cache))
    return numbers.view(kv_cache.numbers.dtype).to(dtype) * scales.to(dtype)[..., None]


def computing_dtype(kv_cache: KVCache, query: Tensor) -> torch.dtype:
    """What to attend in: the cache's own dtype, as widening its keys would cost more than the attention; but
    quantized ones are widened anyway."""
    return kv_cache.dtype if isinstance(kv_cache, Tensor) else query.dtype

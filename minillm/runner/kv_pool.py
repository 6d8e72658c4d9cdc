"""The memory behind the block ids: the KV pool on the device, and the swap pool on the host."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import BlockCopy
from minillm.host.device import to_device
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, QuantizedKV, tensors_of
from minillm.kernels.quantization import FP8
from minillm.model.config import ModelConfig


class KVPool:
    """Keys and values of every layer, in blocks.

    Args:
        dtype: what keys and values are kept in; int8 and float8_e4m3fn have scales.
        num_blocks: blocks that the scheduler hands out.
        num_host_blocks: blocks of swap space in host memory.

    One more block than `num_blocks` exists: the null block, which padding may write to.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (block_size, 2, model_config.num_kv_heads, model_config.head_dim)
        host, layers = torch.device("cpu"), range(model_config.num_layers)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.null_block = num_blocks  # the last one
        self.layers = [make_cache((num_blocks + 1, *shape), dtype, device) for _ in layers]
        """Per layer: [num_blocks + 1, block_size, 2 (key, value), n_kv_heads, d]"""
        self.host_layers = [make_cache((num_host_blocks, *shape), dtype, host) for _ in layers]

    def make_finite(self, block_ids: Sequence[int]) -> None:
        """Replace NaN and infinity in some blocks. The next request that gets a block reads its unused end, too, if
        only to multiply it by zero, and 0 * NaN is NaN. Finite values stay as they are."""
        for layer in self.layers:
            if isinstance(layer, Tensor):
                layer[block_ids] = layer[block_ids].nan_to_num_()
                continue
            layer.scales[block_ids] = layer.scales[block_ids].nan_to_num_(posinf=0)
            if layer.numbers.dtype == FP8:  # its NaN has all bits but the sign set
                numbers = layer.numbers.view(torch.int8)
                numbers[block_ids] = numbers[block_ids].masked_fill(numbers[block_ids] & 127 == 127, 0)

    def save(self, copies: Sequence[BlockCopy]) -> None:
        """Device to host."""
        copy_blocks(self.layers, self.host_layers, copies)

    def load(self, copies: Sequence[BlockCopy]) -> None:
        """Host to device."""
        copy_blocks(self.host_layers, self.layers, copies)


def copy_blocks(sources: list[KVCache], targets: list[KVCache], copies: Sequence[BlockCopy]) -> None:
    """Copy blocks of all layers from one pool to another."""
    if not copies:
        return
    source_ids = to_device(np.array([copy.source for copy in copies]), sources[0].device)
    target_ids = to_device(np.array([copy.target for copy in copies]), targets[0].device)
    for source_layer, target_layer in zip(sources, targets, strict=True):
        for source, target in zip(tensors_of(source_layer), tensors_of(target_layer)):
            target[target_ids] = source[source_ids].to(target.device)


def make_cache(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> KVCache:
    """One layer's, of zeros: [num_blocks, block_size, 2, n_kv_heads, d]."""
    numbers = zeros(shape, dtype, device)
    if dtype not in QUANTIZED_DTYPES.values():
        return numbers
    return QuantizedKV(numbers, zeros(shape[:-1], torch.bfloat16, device))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A pool of zeros: padding is read, if only to be masked, and 0 * NaN would be NaN."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy gets zeroed pages from the operating system as they are first touched: a pool that is mostly
    # unused costs no memory and no time.
    integers = np.zeros(shape, dtype=f"int{8 * dtype.itemsize}")
    return torch.from_numpy(integers).view(dtype)

"""The memory behind the block ids: the KV pool on the device, and the swap pool on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import BlockCopy
from minillm.core.block_pool import blocks_for
from minillm.core.errors import ConfigError
from minillm.host.device import RECORDING, to_device, who_else
from minillm.host.memory import available_bytes
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, QuantizedKV, tensors_of
from minillm.kernels.quantization import FP8, dtype_name
from minillm.model.arithmetic import kv_bytes_per_token
from minillm.model.config import ModelConfig
from minillm.policies.config import EngineConfig

DEFAULT_CPU_BYTES = 1e9
FREE_FRACTION = 0.9
"""Most of the memory that is free once the weights are loaded. What a step takes on a GPU is claimed apart; the rest is
for captured graphs, and for memory in pieces too small to be used."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """Memory of the device that must stay free beside the KV pool. Weights that are loaded already are not in it: they
    are not free any more."""

    num_bytes: int = 0
    bytes_per_token: int = 0
    """For every token that the KV pool holds: a draft model has as many blocks, and some attention backends copy
    contexts."""


NO_CLAIM = MemoryClaim()
BESIDE = "what drafts and steps need beside the KV pool"
"""A claim, in errors."""


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


def size_kv_pool(
    config: EngineConfig,
    model_config: ModelConfig,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    claim: MemoryClaim,
) -> int:
    """Blocks in the KV pool: as configured, else a default that fits the machine, beside what others claim.

    Raises:
        ConfigError: it does not fit the memory, or holds no block.
    """
    block_bytes = kv_bytes_per_token(model_config, dtype_name(dtype)) * block_size
    bytes_with_claim = block_bytes + claim.bytes_per_token * block_size
    free = free_bytes(device)
    _check_fits(BESIDE, "max_num_seqs or max_num_batched_tokens", claim.num_bytes, free, device)
    if config.num_kv_blocks is not None:
        num_blocks = config.num_kv_blocks
    elif config.kv_cache_memory_gb is not None:
        num_blocks = int(config.kv_cache_memory_gb * 1e9 // block_bytes)
    else:
        num_blocks = int((FREE_FRACTION * free - claim.num_bytes) // bytes_with_claim)
        if device.type == "cpu":
            num_blocks = min(int(DEFAULT_CPU_BYTES // block_bytes), num_blocks)
        longest = config.max_model_len or model_config.max_position_embeddings
        # More than every slot at full length could never be used.
        num_blocks = min(num_blocks, config.max_num_seqs * blocks_for(longest, block_size))
    if num_blocks < 1:
        raise ConfigError(
            f"the KV pool has no room for one block of {block_bytes / 1e6:.3g} MB, and {free / 1e9:.2f} GB are "
            f"free: raise kv_cache_memory_gb, or lower block_size.{who_else(device)}"
        )
    what = "the KV pool" if claim == NO_CLAIM else "the KV pool, with what drafts and steps need beside it,"
    num_bytes = num_blocks * bytes_with_claim + claim.num_bytes
    _check_fits(what, "num_kv_blocks or kv_cache_memory_gb", num_bytes, free, device)
    return num_blocks


def check_claim(claim: MemoryClaim, num_tokens: int, device: torch.device) -> None:
    """Raise ConfigError unless there is room for a claim beside a KV pool of `num_tokens` that is there already."""
    num_bytes = claim.num_bytes + claim.bytes_per_token * num_tokens
    fields = "num_kv_blocks or kv_cache_memory_gb"
    _check_fits(BESIDE, fields, num_bytes, free_bytes(device), device)


def size_swap_pool(config: EngineConfig, model_config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Blocks of swap space on the host: none unless preemption="swap".

    Raises:
        ConfigError: it does not fit the memory, or holds no block.
    """
    if config.preemption != "swap":
        return 0
    block_bytes = kv_bytes_per_token(model_config, dtype_name(dtype)) * block_size
    num_blocks = int(config.swap_space_gb * 1e9 / config.tensor_parallel_size // block_bytes)
    if num_blocks < 1:
        raise ConfigError(f"swap_space_gb holds no block of {block_bytes / 1e6:.3g} MB: raise it")
    host = torch.device("cpu")
    _check_fits("the swap space", "swap_space_gb", num_blocks * block_bytes, free_bytes(host), host)
    return num_blocks


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device; on a CPU, what a program may take before something gets killed."""
    if device.type != "cuda":
        return available_bytes()
    with RECORDING:  # meanwhile PyTorch gives nothing back
        torch.cuda.empty_cache()  # what it keeps for later, of an engine that is gone, counts as taken otherwise
    return torch.cuda.mem_get_info(device)[0]


def _check_fits(what: str, fields: str, num_bytes: int, free: int, device: torch.device) -> None:
    if num_bytes > free:
        raise ConfigError(
            f"{what} would take {num_bytes / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free: lower {fields}."
            f"{who_else(device)}"
        )

"""What the sizes of grids and tiles depend on."""

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What the sizes depend on."""

    num_processors: int
    shared_memory: int
    """Bytes that one program may take."""
    capability: int = 90
    """As in sm_90: Hopper."""


@functools.cache
def gpu(device: torch.device) -> GpuLimits:
    """The interpreter has no processors, but pretends to have a few: splitting should be seen there too."""
    if device.type != "cuda":
        return GpuLimits(8, 227 * 1024)
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", 64 * 1024)  # torch for AMD does not say
    return GpuLimits(properties.multi_processor_count, shared_memory, 10 * properties.major + properties.minor)


def warps_for(elements: int) -> int:
    """Warps for a program that handles this many elements in one go: up to 16 a thread, 32 threads a warp."""
    return min(max(elements // 512, 1), 16)

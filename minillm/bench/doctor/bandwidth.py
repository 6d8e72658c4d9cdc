"""How fast the memory is read that a decode step has to read."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from minillm.bench.doctor.check import Check
from minillm.kernels.device import available_bytes
from minillm.simulate.cost.hardware import GIGA, find_hardware

if TYPE_CHECKING:
    import torch

BUFFER_BYTES = 256_000_000
"""About what the default model takes: larger than nearly every cache."""
REPEATS = 3
BUSY_SHARE = 0.5
"""With more of the cores at work for others, a measured figure says little."""


@dataclass(frozen=True, slots=True)
class MemoryBandwidth:
    """How fast memory is read."""

    bytes_per_s: float
    source: str
    """Where the number comes from."""
    device: "torch.device"

    def check(self) -> Check:
        return Check("machine", "memory bandwidth", "ok", f"{self.bytes_per_s / GIGA:.1f} GB/s {self.source}")


def find_bandwidth(device: "torch.device") -> MemoryBandwidth:
    """Of a GPU, what the catalogue says; of other GPUs and of CPUs, what is measured now."""
    import torch

    from minillm.core.errors import UnknownHardwareError
    from minillm.runner.machine_peaks import measure_bandwidth

    if device.type == "cpu":
        size = min(BUFFER_BYTES, available_bytes() // 8)
        measured = read_bandwidth(size)
        return MemoryBandwidth(measured, f"read, measured now{_how_busy()}", device)
    name = torch.cuda.get_device_name(device)
    try:
        return MemoryBandwidth(find_hardware(name).bandwidth, f"by the catalogue's {name}", device)
    except UnknownHardwareError:
        measured = measure_bandwidth(device=device).copy
        return MemoryBandwidth(measured, "copied on the GPU, measured now (it is not in the catalogue)", device)


def read_bandwidth(size: int) -> float:
    """Bytes per second of reading a buffer of `size` bytes."""
    import torch

    from minillm.runner.machine_peaks import measure_read

    return measure_read(torch.ones(max(size // 4, 1)), REPEATS)


def _how_busy() -> str:
    """Whether other programs disturb the measurement."""
    cores = os.cpu_count() or 1
    load = psutil.getloadavg()[0]
    return f" (load {load:.1f} on {cores} cores: more when it is idle)" if load > BUSY_SHARE * cores else ""

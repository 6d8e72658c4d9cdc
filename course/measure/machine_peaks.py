"""A machine's peaks: how fast it reads memory and multiplies matrices when it does nothing else.

A decode step reads every weight once, however many sequences are in it, and every key and value of
their contexts: at small batches that reading, not arithmetic, is what a step costs. A long prefill uses
each weight for many tokens, and is bound by arithmetic. No engine gets above either peak
(Williams et al. 2009, the roofline model). Both are measured here, since data sheets promise more.
"""

from dataclasses import dataclass

import torch

from minillm.host.bandwidth import CPU, QUICK_REPEATS, Bandwidth, measure_bandwidth
from minillm.host.timing import best_seconds
from minillm.kernels.quantization import dtype_name

SUSTAINED_S = 0.05
"""Matrix products are timed this long at a stretch, as long as a prefill takes: a single one after a rest runs at
the boost clock, which no prefill sees."""
QUICK_SIZE = 256
"""For --quick: tries the measurement, measures nothing."""


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """What one device can do at most, as measured."""

    bandwidth: Bandwidth
    memory: float
    """The bandwidth that decoding is held against, bytes per second."""
    memory_kind: str
    """Which of the two that is: read on a CPU; copy on a GPU, as GPU engines are usually held against."""
    matmul: float
    """FLOP/s of a large matrix product."""
    matmul_dtype: str


def measure_peaks(device: torch.device, compute_dtype: torch.dtype, quick: bool = False) -> MachinePeaks:
    """Measure both peaks of a device.

    Args:
        compute_dtype: what the linear layers multiply in.
        quick: tiny sizes: the numbers mean nothing.
    """
    bandwidth = measure_bandwidth(device=device, quick=quick)
    matmul = measure_matmul(compute_dtype, device, quick=quick)
    kind = "copy" if device.type == "cuda" else "read"
    return MachinePeaks(bandwidth, getattr(bandwidth, kind), kind, matmul, dtype_name(compute_dtype))


def measure_matmul(
    dtype: torch.dtype, device: torch.device = CPU, size: int | None = None, repeats: int = 10, quick: bool = False
) -> float:
    """FLOP/s of [size, size] x [size, size] products, back to back; the best of `repeats` stretches.

    Args:
        size: None = large enough to fill the device.
    """
    size = size or (8192 if device.type == "cuda" else 2048)
    size, repeats = (QUICK_SIZE, QUICK_REPEATS) if quick else (size, repeats)
    # Random numbers: a GPU multiplies zeros at a higher clock, since they cost it less power.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    return 2 * size**3 / best_seconds(lambda: torch.mm(left, right, out=result), device, repeats, SUSTAINED_S)

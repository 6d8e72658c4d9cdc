"""A machine's peaks: how fast it reads memory and multiplies matrices when it does nothing else.

A decode step reads every weight once, however many sequences are in it, and every key and value of
their contexts: at small batches that reading, not arithmetic, is what a step costs. A long prefill uses
each weight for many tokens, and is bound by arithmetic. No engine gets above either peak
(Williams et al. 2009, the roofline model). Both are measured here, since data sheets promise more.
"""

from dataclasses import dataclass

import torch

from minillm.host.timing import best_seconds
from minillm.kernels.quantization import dtype_name

CPU = torch.device("cpu")
SUSTAINED_S = 0.05
"""Matrix products are timed this long at a stretch, as long as a prefill takes: a single one after a rest runs at
the boost clock, which no prefill sees."""
QUICK_BYTES, QUICK_SIZE, QUICK_REPEATS = 10_000_000, 256, 2
"""For --quick: tries the measurement, measures nothing."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Measured memory bandwidth, bytes per second."""

    read: float
    copy: float
    """Bytes read plus bytes written."""


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


def measure_bandwidth(
    buffer_bytes: int = 1_000_000_000, repeats: int = 7, device: torch.device = CPU, quick: bool = False
) -> Bandwidth:
    """Stream through buffers far larger than any cache, on all threads; the best of `repeats`.

    Reading is measured twice, since a sum or a dot product alone may be held up by its own arithmetic on some
    CPUs. Copying stays on the device.
    """
    buffer_bytes, repeats = (QUICK_BYTES, QUICK_REPEATS) if quick else (buffer_bytes, repeats)
    source = torch.ones(buffer_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = best_seconds(lambda: target.copy_(source), device, repeats)
    return Bandwidth(read=measure_read(source, repeats), copy=2 * source.nbytes / copy)


def measure_read(source: torch.Tensor, repeats: int) -> float:
    """Bytes per second of reading a buffer: by a sum or by a dot product, whichever is faster."""
    works = (source.sum, lambda: source.dot(source))
    return source.nbytes / min(best_seconds(work, source.device, repeats) for work in works)


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

"""How fast this machine reads and copies memory when it does nothing else."""

from dataclasses import dataclass

import torch

from minillm.host.timing import best_seconds

CPU = torch.device("cpu")
QUICK_BYTES, QUICK_REPEATS = 10_000_000, 2
"""For a quick try: tries the measurement, measures nothing."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Measured memory bandwidth, bytes per second."""

    read: float
    copy: float
    """Bytes read plus bytes written."""


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

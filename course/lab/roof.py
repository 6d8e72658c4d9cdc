"""The two limits of a machine: how fast it reads memory, how fast it multiplies. No step gets above either."""

from dataclasses import dataclass

import torch

from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.simulator.cost.hardware import find_hardware
from minillm.bench.machine_peaks import measure_bandwidth, measure_matmul
from minillm.bench.target import Target

GPU_BUFFER, CPU_BUFFER, CPU_SIZE = 1_000_000_000, 320_000_000, 1536
"""Bytes streamed, several times any common cache; and the side of the matrices multiplied."""
TINY_BUFFER, TINY_SIZE = 4_000_000, 128
"""For a random model of two layers, in tests."""
HIDDEN_OF_TESTS = 64
ROUNDS = 3
"""Reading and multiplying by turns, the best of each: whatever else runs can only slow one down."""


@dataclass(frozen=True)
class Roof:
    """What one machine can do at most."""

    name: str
    bandwidth: float
    """Bytes read per second."""
    flops: float
    """Operations (FLOP) per second, multiplying large matrices."""
    source: str

    @property
    def ridge(self) -> float:
        """Operations for each byte at which both limits take equally long: where the roof bends."""
        return self.flops / self.bandwidth

    def reading(self, count: float) -> float:
        """Seconds to read so many bytes, at least."""
        return count / self.bandwidth

    def multiplying(self, count: float) -> float:
        """Seconds for so many operations, at least."""
        return count / self.flops

    def at(self, intensity: float) -> float:
        """Operations per second that the roof allows."""
        return min(self.flops, self.bandwidth * intensity)

    def knee(self, shape: ModelShape, context: float) -> float | None:
        """The batch at which multiplying takes as long as reading; None = at these contexts no batch gets there.

        Solves  batch x FLOP per token / flops = (weights + batch x KV of a context) / bandwidth.
        """
        slope = shape.flops_per_token(context) / self.ridge - context * shape.kv_bytes_per_token
        return shape.weight_bytes / slope if slope > 0 else None


def this_machine(lab: Lab) -> Roof:
    """Measured here and now, on the device that the lab's engine uses; the data sheet of one that is simulated.

    Where the processor multiplies one dtype faster than another, the faster counts: an engine may choose.
    """
    if lab.simulated is not None:
        return on_paper(lab.simulated.hardware, lab.simulated.count)
    device = Target(device=lab.config().device).torch_device()
    shape = ModelShape.of_lab(lab)
    buffer, size = (TINY_BUFFER, TINY_SIZE) if shape.cost.hidden <= HIDDEN_OF_TESTS else (CPU_BUFFER, CPU_SIZE)
    if device.type == "cuda":
        buffer, size = GPU_BUFFER, None
    speeds = {dtype: _multiplies(dtype, device, size) for dtype in sorted({shape.weight_dtype, "float32"})}
    best = max(speeds, key=speeds.get)
    bandwidths, flops = [], [speeds[best]]
    for _ in range(ROUNDS):
        measured = measure_bandwidth(buffer, 3, device)
        bandwidths.append(measured.copy if device.type == "cuda" else measured.read)
        flops.append(_multiplies(best, device, size))
    return Roof("this machine", max(bandwidths), max(flops), f"measured just now; it multiplies fastest in {best}")


def _multiplies(dtype: str, device: torch.device, size: int | None) -> float:
    return measure_matmul(getattr(torch, dtype), device, size, 2)


def on_paper(name: str = "h100-sxm", gpus: int = 1) -> Roof:
    """A GPU of the simulator's catalogue: its data sheet."""
    hardware = find_hardware(name)
    called = "H100" if name == "h100-sxm" else hardware.name
    many = called if gpus == 1 else f"{gpus} x {called}"
    return Roof(many, gpus * hardware.bandwidth, gpus * hardware.peak_flops("bfloat16"), hardware.source)

"""The two limits of a machine: how fast it reads memory, how fast it multiplies. No step gets above either.

Both change while a page is read: other programs take their share, clocks fall. So a limit is the median of what was
measured on this machine lately, between the runs, and the range is stated beside it. Lessons 06 and 09 use the same.
"""

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel
from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.simulator.cost.hardware import find_hardware
from minillm.bench.machine_peaks import measure_bandwidth, measure_matmul, measure_read
from minillm.bench.target import Target

GPU_BUFFER, CPU_BUFFER, CPU_SIZE = 1_000_000_000, 320_000_000, 1536
"""Bytes streamed, several times any common cache; and the side of the matrices multiplied."""
SHORT_SIZE = 768
"""The same in the short form: an eighth of the work."""
TINY_BUFFER, TINY_SIZE = 4_000_000, 128
"""For a random model of two layers, in tests."""
HIDDEN_OF_TESTS = 64
ROUNDS = 3
"""Reading and multiplying by turns, each time that a page asks."""
LATEST = 9
"""Rounds that count: those of three looks at the machine."""


class KeptRounds(StoredModel):
    """What was measured on this machine lately."""

    rounds: dict[str, list[tuple[float, float]]] = Field(default_factory=dict)
    """Bytes per second, FLOP per second; by device, oldest first."""


FILE = JsonStore("roof.json", KeptRounds)


@dataclass(frozen=True)
class Roof:
    """What one machine can do at most."""

    name: str
    bandwidth: float
    """Bytes read per second."""
    flops: float
    """Operations (FLOP) per second, multiplying large matrices."""
    source: str
    rounds: tuple[tuple[float, float], ...] = ()
    """Bytes and FLOP per second, as measured, oldest first; none of a data sheet."""

    @property
    def slowest(self) -> float:
        """The lowest bandwidth that was measured."""
        return min((bandwidth for bandwidth, _ in self.rounds), default=self.bandwidth)

    @property
    def fastest(self) -> float:
        """The highest bandwidth that was measured."""
        return max((bandwidth for bandwidth, _ in self.rounds), default=self.bandwidth)

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
        """Operations per second that the roof allows to one kernel of this intensity."""
        return min(self.flops, self.bandwidth * intensity)

    def linear(self, shape: ModelShape, batch: float) -> float:
        """Seconds for the linear layers of a decode step, at least: they read every weight once, and multiply with it
        for each request."""
        return max(self.reading(shape.weight_bytes), self.multiplying(batch * shape.flops_per_token(0)))

    def attention(self, shape: ModelShape, batch: float, context: float) -> float:
        """Seconds for the attention of a decode step, at least: each request reads and scores keys and values of its
        own."""
        scores = batch * (shape.flops_per_token(context) - shape.flops_per_token(0))
        return max(self.reading(shape.kv_bytes(batch, context)), self.multiplying(scores))

    def floor(self, shape: ModelShape, batch: float, context: float) -> float:
        """Seconds for both, which run one after the other. That can be more than reading or multiplying alone takes."""
        return self.linear(shape, batch) + self.attention(shape, batch, context)

    def knee(self, shape: ModelShape) -> float:
        """The batch from which the linear layers wait for arithmetic, whatever the contexts."""
        return self.reading(shape.weight_bytes) / self.multiplying(shape.flops_per_token(0))


def this_machine(lab: Lab, before: Roof | None = None) -> Roof:
    """Measured here and now, on the device that the lab's engine uses; the data sheet of one that is simulated.

    Where the processor multiplies one dtype faster than another, the faster counts: an engine may choose.

    Args:
        before: what this page has measured already, which counts as well. None = what earlier pages have, if that was
            kept.
    """
    if lab.simulated is not None:
        return on_paper(lab.simulated.hardware, lab.simulated.count)
    device = Target(device=lab.config().device).torch_device()
    shape = ModelShape.of_lab(lab)
    buffer, size = CPU_BUFFER, CPU_SIZE if lab.scale == 1 else SHORT_SIZE
    if device.type == "cuda":
        buffer, size = GPU_BUFFER, None
    elif shape.cost.hidden <= HIDDEN_OF_TESTS:
        buffer, size = TINY_BUFFER, TINY_SIZE
    speeds = {dtype: _multiplies(dtype, device, size) for dtype in sorted({shape.weight_dtype, "float32"})}
    best = max(speeds, key=speeds.get)
    measured = []
    for _ in range(ROUNDS if lab.scale == 1 else 1):
        measured.append((_streams(buffer, device), _multiplies(best, device, size)))
    where = f"{platform.node()}/{device.type}/{torch.get_num_threads()} threads/{best}"
    earlier = before.rounds if before is not None else FILE.read().rounds.get(where, ())
    FILE.change(lambda kept: kept.rounds.update({where: [*kept.rounds.get(where, ()), *measured][-LATEST:]}))
    return measured_roof((*earlier, *measured)[-LATEST:], f"it multiplies fastest in {best}")


def measured_roof(rounds: Sequence[tuple[float, float]], remark: str = "") -> Roof:
    """The medians of some rounds: bytes and FLOP per second."""
    bandwidth, flops = (statistics.median(each) for each in zip(*rounds))
    source = f"measured here, the median of {len(rounds)} rounds" if len(rounds) > 1 else "measured here, once"
    return Roof("this machine", bandwidth, flops, f"{source}; {remark}" if remark else source, tuple(rounds))


def _streams(buffer: int, device: torch.device) -> float:
    """Bytes per second: copied on a GPU, read elsewhere (machine_peaks.py says why)."""
    if device.type == "cuda":
        return measure_bandwidth(buffer, 3, device).copy
    return measure_read(torch.ones(buffer // 4), 3)


def _multiplies(dtype: str, device: torch.device, size: int | None) -> float:
    return measure_matmul(getattr(torch, dtype), device, size, 2)


def on_paper(name: str = "h100-sxm", gpus: int = 1) -> Roof:
    """A GPU of the simulator's catalogue: its data sheet."""
    hardware = find_hardware(name)
    called = "H100" if name == "h100-sxm" else hardware.name
    many = called if gpus == 1 else f"{gpus} x {called}"
    return Roof(many, gpus * hardware.bandwidth, gpus * hardware.peak_flops("bfloat16"), hardware.source)

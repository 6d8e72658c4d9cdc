"""All-reduces: the sum of what all ranks have, on all ranks, after attention and after the MLP of each layer.

They go the fastest of a few ways. At once, every rank reads all that the others have: little latency, and (n - 1) times
the bytes; it needs a kernel of its own, which vLLM has (pull request 2192). In 2 (n - 1) hops, as a reduce-scatter and
an all-gather (Patarasuk and Yuan 2009), the bytes are 2 (n - 1) / n times the message's, however many ranks there are;
NCCL's protocols for that trade latency for bandwidth. Each way is a straight line over the message's size. Where such
links were measured, the lines are fitted to that (all_reduce.json); elsewhere two follow from the link's bandwidth.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from course.simulator.cost.hardware import Hardware

_MEASURED = json.loads((Path(__file__).parent / "all_reduce.json").read_text())
MEASURED: dict[str, dict[str, Any]] = _MEASURED["links"]
"""By link and number of ranks: all lines, in microseconds and microseconds per MB."""
SOURCE: str = _MEASURED["source"]
EXCHANGES: dict[str, Any] = _MEASURED["exchanges"]
"""By link and number of ranks: microseconds of a small exchange."""
SYMMETRIC = ", symmetric memory"
"""Behind a link's name: large messages are reduced in memory that all ranks have mapped alike."""
MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of one way, as a straight line over the message's size."""

    latency_s: float
    byte_s: float


@dataclass(frozen=True, slots=True)
class AllReduce:
    """What an all-reduce takes among so many ranks: the lowest of some lines."""

    ways: tuple[Line, ...]
    is_measured: bool

    @classmethod
    def of(
        cls, hardware: Hardware, ranks: int, wait_s: float | None, link: float, latency_s: float, hop_s: float
    ) -> "AllReduce":
        """Over the links of an accelerator.

        Args:
            wait_s: until the later of two ranks is there, where the rest was measured; None = take the next three.
            link, latency_s, hop_s: see `Constants`.
        """
        known = MEASURED.get(hardware.measured_link or "", {})
        sizes = [int(each) for each in known if each.isdigit()]
        if wait_s is not None and sizes and ranks > 1:
            # More ranks than were measured take as long as the most: NVLink switches reduce within the fabric.
            size = min((each for each in sizes if each >= ranks), default=max(sizes))
            waits = wait_s * waits_of_two(ranks)
            return cls(tuple(Line(waits + MICRO * a, MICRO * b / 1e6) for a, b in known[str(size)]), is_measured=True)
        byte_s = 2 * (ranks - 1) / ranks / (hardware.link * link)
        in_hops = Line(latency_s + 2 * max(ranks - 2, 0) * hop_s, byte_s)
        at_once = Line(latency_s, byte_s * ranks / 2) if hardware.link_class == "nvlink" else in_hops
        return cls((at_once, in_hops), is_measured=False)


def waits_of_two(ranks: int) -> float:
    """How long the last of so many ranks is awaited, compared with the later of two: where the largest of normally
    distributed numbers is expected (Blom 1958). A single rank waits for nobody."""
    return _largest(ranks) / _largest(2)


def _largest(numbers: int) -> float:
    return NormalDist().inv_cdf((numbers - 3 / 8) / (numbers + 1 / 4))


def small_exchange(hardware: Hardware, ranks: int) -> float | None:
    """Seconds that an exchange of a few bytes takes among the ranks of one server; None = nobody measured."""
    measured = EXCHANGES.get((hardware.measured_link or "").removesuffix(SYMMETRIC), {}).get(str(ranks))
    return None if measured is None else MICRO * measured

"""The claim of lesson 14: a factor for each technique."""

from collections.abc import Callable, Sequence

from course.lab.claims import TECHNIQUES, Claim
from course.lab.lab import Lab
from course.lab.lesson_14 import techniques
from course.lab.lesson_14.techniques import CLAIMED, Cell, by_technique

DEPENDS = 1.5
"""A factor that differs by more than this between two workloads depends on the workload."""
AGREES = 1.25
"""A factor within this of the claimed one agrees with it."""
GAIN = 1.05
"""A smaller factor is no gain; a factor below its inverse is a loss."""


def d22(cells: Sequence[Cell]) -> Claim:
    """The table, filled in for several workloads."""
    groups = by_technique(cells)
    told = "; ".join(
        f"{name} (claimed {CLAIMED[name]:g}) " + ", ".join(f"{cell.factor:.2f} {cell.workload}" for cell in group)
        for name, group in groups.items()
    )
    return Claim(
        "D22",
        "A technique has a factor: static batching 1.5, continuous 3, streaming 2 (of TTFT), speculation 2.3, "
        "compression 1.5.",
        TECHNIQUES,
        f"times as fast, on this engine. {told}.",
        verdict(cells),
    )


def verdict(cells: Sequence[Cell]) -> str:
    groups = by_technique(cells)
    if (apart := techniques.noise(cells)) > techniques.NOISY:
        return (
            f"not shown: where techniques do the very same work, times differed by a factor of {apart:.1f}. This "
            "machine was busy with something else; run it again."
        )
    judged = [cell for cell in cells if (cell.technique, cell.workload) not in techniques.CONTROLS]
    depends = [name for name, group in groups.items() if techniques.spread(group) > DEPENDS]
    agree = [cell for cell in cells if 1 / AGREES < cell.factor / CLAIMED[cell.technique] < AGREES]
    if not depends:
        return f"wrong as figures: {len(agree)} of {len(cells)} are near the table's, whatever the workload."
    idle = sum(cell.factor < GAIN for cell in cells)
    slower = [f"{cell.technique} with {cell.workload} × {cell.factor:.2f}" for cell in judged if cell.factor < 1 / GAIN]
    losses = f", or a loss: {'; '.join(slower)}" if slower else ""
    return (
        f"holds only when a workload stands beside each figure: for {', '.join(depends)} the best workload's factor is "
        f"more than {DEPENDS:g} times the worst one's. {len(agree)} of {len(cells)} are near the table's, {idle} bring "
        f"no gain{losses}. The column also mixes quantities: one row is about TTFT, another about p99, the others do "
        "not say; and techniques that work on the same bottleneck do not multiply."
    )


MEASURE: dict[str, Callable[[Lab], Claim]] = {"D22": lambda lab: d22(techniques.measure(lab))}

"""The claim of lesson 14: a factor for each technique."""

from collections.abc import Callable, Sequence

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lessons.lesson_14 import techniques
from course.lessons.lesson_14.techniques import CLAIMED, Cell, by_technique

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
    return Claim("D22", say("D22.measured", told=told), verdict(cells))


def verdict(cells: Sequence[Cell]) -> str:
    groups = by_technique(cells)
    if (apart := techniques.noise(cells)) > techniques.NOISY:
        return say("D22.not_shown", apart=apart)
    judged = [cell for cell in cells if (cell.technique, cell.workload) not in techniques.CONTROLS]
    depends = [name for name, group in groups.items() if techniques.spread(group) > DEPENDS]
    agree = [cell for cell in cells if 1 / AGREES < cell.factor / CLAIMED[cell.technique] < AGREES]
    if not depends:
        return say("D22.wrong", num_agree=len(agree), num_cells=len(cells))
    idle = sum(cell.factor < GAIN for cell in cells)
    slower = [f"{cell.technique} with {cell.workload} × {cell.factor:.2f}" for cell in judged if cell.factor < 1 / GAIN]
    losses = f", or a loss: {'; '.join(slower)}" if slower else ""
    return say(
        "D22.only_when", depends=", ".join(depends), depends_names=DEPENDS, num_agree=len(agree),
        num_cells=len(cells), idle=idle, losses=losses,
    )  # fmt: skip


MEASURE: dict[str, Callable[[Lab], Claim]] = {"D22": lambda lab: d22(techniques.measure(lab))}

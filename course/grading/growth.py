"""Whether an answer's work grows, judged by the ratio of two sizes: a slow machine is slow at both of them.

A clock on the wall, or a limit in seconds, judges the machine too. So a judge measures what one unit of work costs (one
operation, one token, one line) at a small size and at a large one, in CPU time of the answer's own process. Where the
work is in proportion, both cost the same but for caches; where each unit looks at everything there is, it costs as many
times more as there is more. The sizes leave room for `MARGIN` on both sides.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course.grading.remote import AnswerTime
from course.grading.tools import expect

MARGIN = 4.0
"""How many times its cost at the smallest size a unit may cost. Caches account for up to 2."""
TRIES = 3
"""An answer loses points only if every one of these shows the growth."""
LEAST_S, MOST_REPEATS = 0.003, 100
"""CPU seconds that a measurement takes at least: work that is shorter is repeated, at most so often."""


@dataclass(frozen=True)
class WorkCost:
    """What some units of work took together, CPU seconds."""

    seconds: float
    units: int

    def __add__(self, other: "WorkCost") -> "WorkCost":
        return WorkCost(self.seconds + other.seconds, self.units + other.units)


def cost_of(act: Callable[[], Any], units: int) -> WorkCost:
    """What the answer's process spends on `act`, which does so many units of work."""
    began = AnswerTime.seconds
    act()
    return WorkCost(AnswerTime.seconds - began, units)


def unit_cost(work: Callable[[], WorkCost], enough: float = 0.0) -> float:
    """CPU seconds of one unit of work; at least what a clock of coarse ticks can tell.

    Args:
        work: begins afresh each time it is called.
        enough: it need not be known more exactly than that it is at most so much.
    """
    total = work()
    for _ in range(MOST_REPEATS):
        if total.seconds >= LEAST_S or LEAST_S / total.units <= enough:
            break
        total += work()
    return max(total.seconds, LEAST_S) / total.units


def times_as_costly(one: Callable[[], WorkCost], other: Callable[[], WorkCost], limit: float) -> float:
    """How many times as much a unit of `one` costs as a unit of `other`, or any number up to the limit.

    Args:
        limit: what decides. A ratio above it is measured anew, `TRIES` times in all, and the smallest is given back.
            `other` is measured before and, if that gives too much, after `one` as well, and the larger of the two
            counts: so much is noise.
    """
    smallest = math.inf
    for _ in range(TRIES):
        before = unit_cost(other)
        cost = unit_cost(one, limit * before)
        base = before if cost <= limit * before else max(before, unit_cost(other))
        smallest = min(smallest, cost / base)
        if smallest <= limit:
            break
    return smallest


def hold_steady(
    work: Callable[[int], WorkCost], sizes: Sequence[int], feedback: str, share: float = 0.0, **fields: Any
) -> None:
    """Raise Mistake(feedback, share, ...) if a unit of work costs more than `MARGIN` times as much at a larger size.

    Args:
        work: does it at one size, from the beginning.
        sizes: the smallest first. The next one should be large enough to show most mistakes, and small enough that
            these come to an end; the last shows those whose work is done by fast compiled code.
        feedback: names a text; in its braces stand `size`, `smallest`, and `times`, the ratio of their costs.
    """
    smallest, *larger = sizes
    for size in larger:
        times = times_as_costly(lambda size=size: work(size), lambda: work(smallest), MARGIN)
        expect(times <= MARGIN, feedback, share, **{"size": size, "smallest": smallest, "times": times, **fields})

"""A control: the same run twice. On a real machine any difference is noise; on a simulated one there is none."""

from html import escape
from typing import Any

from course.lab.marks import CONTROL_MOVED, QUIET
from course.lab.noise import CEILING, ratio_of
from course.lab.run import Run, percentile
from course.lab.style import change, seconds


class Control:
    """What became of E2E where nothing was changed.

    Args:
        why: nothing was, in one clause.
        q: the percentile that is compared.
    """

    def __init__(self, why: str, before: Run, after: Run, q: float = 99) -> None:
        was, now = percentile(before.e2e, q), percentile(after.e2e, q)
        self.moved = abs(now / was - 1)
        """As a share of what it was: 0.2 = by 20%, either way."""
        what = "the slowest E2E" if q == 100 else f"p{q:g} of E2E"
        told = f"{why}: {what} went from {seconds(was)} to {seconds(now)} ({change(was, now)})."
        if before.simulated_on:
            told += " On a simulated device equal work takes equally long; real runs scatter."
        elif ratio_of(was, now) > CEILING:
            told += " So much isn't noise: something else kept this machine busy during one of the two."
        else:
            told += " That's this machine's noise: a difference no larger than this means nothing."
        if self.moved > QUIET:
            told += " It's too large: run the lesson again while the machine does nothing else."
        self._told = told

    def __str__(self) -> str:
        return self._told

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, Any], ...]:
        bundle = {"text/html": f"<p>{escape(self._told)}</p>", "text/plain": self._told}
        return bundle, {CONTROL_MOVED: round(self.moved, 3)}

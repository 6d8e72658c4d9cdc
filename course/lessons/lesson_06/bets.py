"""What the predictions of lesson 06 are scored by."""

from collections.abc import Sequence

from course.lab.predict import Outcome
from course.lab.style import seconds
from course.lessons.lesson_06.steps import Dot, largest_within

BORDER = 2**0.5
"""Nearer to x 1, or nearer to x 2?"""
DOUBLINGS = {
    (True, True): "1 → 2: hardly changes; 64 → 128: hardly changes",
    (True, False): "1 → 2: hardly changes; 64 → 128: nearly doubles",
    (False, True): "1 → 2: nearly doubles; 64 → 128: hardly changes",
    (False, False): "1 → 2: nearly doubles; 64 → 128: nearly doubles",
}
"""By whether ITL stayed, at each of the two doublings."""
GROWTH = ("less than a quarter more", "a quarter more to double", "more than double")
SLO = 3.0
"""Times the ITL of a lone request."""


def two_doublings(dots: Sequence[Dot]) -> tuple[float, float]:
    """By what ITL grew from batch 1 to 2, and from 64 to 128."""
    itl = {dot.batch: dot.itl for dot in dots}
    return itl[2] / itl[1], itl[128] / itl[64]


def doublings(dots: Sequence[Dot]) -> Outcome:
    """Which of the two doublings was nearly free."""
    early, late = two_doublings(dots)
    told = {dot.batch: f"{dot.batch}: {seconds(dot.itl)}" for dot in dots}
    found = f"ITL at batch {', '.join(told.values())}; from 1 to 2 ×{early:.2f}, from 64 to 128 ×{late:.2f}"
    return Outcome(DOUBLINGS[early < BORDER, late < BORDER], found + _noise(dots))


def slo(sweep: Sequence[Dot]) -> Outcome:
    """The largest batch within SLO times a lone request's ITL."""
    limit = SLO * sweep[0].itl
    kept = largest_within(sweep, limit)
    return Outcome(
        kept, f"a lone request's ITL is {seconds(sweep[0].itl)}; {seconds(limit)} is reached at batch {kept:.0f}"
    )


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> Outcome:
    """How many times as long a lone request's step takes if Python launches every operation."""
    ratio = apart[0].itl / whole[0].itl
    told = f"{seconds(whole[0].itl)} in one call, {seconds(apart[0].itl)} operation by operation"
    return Outcome(ratio, f"{told}: ×{ratio:.2f}" + _noise([whole[0], apart[0]]))


def growth(dots: Sequence[Dot]) -> Outcome:
    """ITL from the shortest to the longest context, at one batch."""
    short, long = dots[0], dots[-1]
    ratio = long.itl / short.itl
    answer = GROWTH[0] if ratio < 1.25 else GROWTH[1] if ratio <= 2 else GROWTH[2]
    ends = " to ".join(f"{seconds(dot.itl)} at a context of {dot.context:.0f}" for dot in (short, long))
    return Outcome(answer, f"{ends} (×{ratio:.2f})" + _noise([short, long]))


def _noise(dots: Sequence[Dot]) -> str:
    restless = [str(dot.batch) for dot in dots if dot.is_restless]
    return f". The machine was restless (batch {', '.join(restless)}): run it again to be sure" if restless else ""

"""What the predictions of lesson 06 are scored by."""

from course.lab.lesson_06.steps import Dot
from course.lab.predict import Outcome
from course.lab.style import seconds

SAME, LONGER = "hardly changes", "nearly doubles"
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


def doublings(dots: list[Dot]) -> Outcome:
    """ITL from batch 1 to 2, and from 64 to 128."""
    itl = {dot.batch: dot.itl for dot in dots}
    early, late = itl[2] / itl[1], itl[128] / itl[64]
    found = (
        f"ITL from batch 1 to 2: {seconds(itl[1])} to {seconds(itl[2])} (×{early:.2f}); "
        f"from 64 to 128: {seconds(itl[64])} to {seconds(itl[128])} (×{late:.2f}); the border is ×{BORDER:.2f}"
        + _noise(dots)
    )
    return Outcome(DOUBLINGS[early < BORDER, late < BORDER], found)


def growth(dots: list[Dot]) -> Outcome:
    """ITL from the shortest to the longest context, at one batch."""
    short, long = dots[0], dots[-1]
    ratio = long.itl / short.itl
    answer = GROWTH[0] if ratio < 1.25 else GROWTH[1] if ratio <= 2 else GROWTH[2]
    found = (
        f"context {short.context:.0f}: {seconds(short.itl)}; context {long.context:.0f}: {seconds(long.itl)} "
        f"(×{ratio:.2f}), while the bytes read grew ×{long.bytes / short.bytes:.2f}" + _noise([short, long])
    )
    return Outcome(answer, found)


def _noise(dots: list[Dot]) -> str:
    restless = [str(dot.batch) for dot in dots if dot.is_restless]
    return f". The machine was restless (batch {', '.join(restless)}): run it again to be sure" if restless else ""

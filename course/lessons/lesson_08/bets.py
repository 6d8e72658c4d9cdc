"""What the predictions of lesson 08 are scored by."""

from collections.abc import Sequence

from course.lab.noise import CEILING, ratio_of
from course.lab.predict import Outcome
from course.lab.style import number
from course.lessons.lesson_08.acceptance import Point
from course.lessons.lesson_08.costs import VerifyCosts
from course.lessons.lesson_08.served import ALWAYS, NOISE, WITHOUT, Served, faster, is_apart

PRICE = 0.1
"""Of a guess, in decode steps, in the first prediction."""
ALPHA, K = 0.6, 4
QUESTION = f"α = {ALPHA:g}, k = {K}, a guess costs {PRICE:g} steps."
CROWDED = ("faster", "no difference worth mentioning", "slower")


def alone(point: Point, costs: VerifyCosts) -> Outcome:
    """Speedup for one reader: tokens measured, over the measured price of checking and the given one of drafting."""
    verify = costs.relative(1, point.k)
    gain = point.emitted / (verify + point.k * PRICE)
    found = (
        f"a verification yielded {number(point.emitted)} tokens, and took {verify:.2f} decode steps here; {point.k} "
        f"guesses take {number(point.k * PRICE)} more: ×{gain:.2f}"
    )
    return Outcome(gain, found)


def crowded(every: Sequence[Served]) -> Outcome | str:
    """Speed of decoding with drafts, gates open, when many copy at once. If their runs overlap: no difference.

    A sentence, if they overlap although the best ones differ by too much for that.
    """
    without, always = (next(one for one in every if one.way == way) for way in (WITHOUT, ALWAYS))
    gain, apart = faster(always, without), is_apart(always, without)
    if not apart and ratio_of(gain, 1.0) > CEILING:
        return f"the best runs differ by ×{gain:.2f}, but the others overlap: not enough runs on so busy a machine"
    answer = CROWDED[0] if apart and gain > NOISE else CROWDED[2] if apart and gain < 1 / NOISE else CROWDED[1]
    found = (
        f"{always.acceptance or 0:.0%} of the guesses that were tested passed, "
        f"{number(always.drafts.emitted_per_verify or 1)} tokens a verification; speed of each request ×{gain:.2f}"
    )
    return Outcome(answer, found)

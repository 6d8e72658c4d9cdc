"""What drafting gains: drag acceptance, length, price of a guess, batch; a verification costs what was measured."""

from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture
from course.lessons.lesson_08.costs import VerifyCosts, gain
from course.lessons.lesson_08.formulas import best_k, break_even

LONGEST = 8


def price_lab(costs: VerifyCosts) -> Explorer:
    """The four sliders over one picture."""
    return Explorer(
        lambda alpha, k, c, batch: draw_gain(costs, alpha, k, c, batch),
        alpha=slider("α, acceptance", 0.0, 1.0, 0.6, 0.05),
        k=slider("k, guesses in a draft", 1, LONGEST, 4),
        c=slider("c, the cost of a guess in steps", 0.0, 1.0, 0.1, 0.05),
        batch=choices("batch, requests", costs.batches, costs.batches[0]),
    )


def draw_gain(costs: VerifyCosts, alpha: float, k: int, c: float, batch: int) -> Picture:
    """The speedup at every batch; for one of them also the acceptance at which it breaks even, and the best k."""
    gains = [gain(costs, each, k, alpha, c) for each in costs.batches]
    here = gain(costs, batch, k, alpha, c)
    border = break_even(k, c, costs.relative(batch, k))
    words = "it loses at any α" if border is None else f"it gains above α = {border:.2f}"
    best = best_k(alpha, c, lambda length: costs.relative(batch, length), LONGEST)
    return draw_chart(
        f"{costs.doubt}×{here:.2f} at batch {batch}: {words}; the best k here is {best}",
        [Curve("speedup", costs.batches, gains)],
        Axis("batch, requests", log=True),
        Axis("speedup (×)", low=0, high=max(2.0, *gains) * 1.15),
        [Mark("below: it loses", y=1.0), Mark(f"×{here:.2f}", batch, here)],
        description=", ".join(f"batch {b}: ×{g:.2f}" for b, g in zip(costs.batches, gains)) + f". {words}.",
    )

"""What the runs of lesson 13 showed: its verdict on its claim."""

import math
from collections.abc import Callable

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lessons.lesson_13.run import FULL, OUTPUT, Fit, experiment

IMPOSSIBLE = 1.5
"""Asked for so many times its capacity, no server answers in 3 s for longer than a moment."""


def a17(fit: Fit) -> Claim:
    """Do the dump's numbers belong together, and is p99 x tokens the time of an answer?"""
    sums = say("A17.product_misleads" if fit.product / fit.decode_p99 > 1.2 else "A17.product_is_about_right", fit=fit)
    verdict = "holds" if fit.servers < IMPOSSIBLE else "wrong"
    told = {"full": FULL, "gaps": OUTPUT - 1, "output": OUTPUT, "ceil": math.ceil(fit.servers)}
    return conclude("A17", verdict, fit=fit, sums=sums, **told)


EXPERIMENT = ("lab/visits.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A17": lambda lab: a17(experiment(lab))}

"""The check of lesson 10c. Keys are arithmetic."""

from course.grading import Checks, Criterion, near
from course.lessons.lesson_10 import checks as wire


def checks() -> Checks:
    """Questions about clients that leave and retry.

    q1: the share of compute saved: 40% of readers leave with a quarter read; a fifth of a request is its prompt.
    q2: half of all attempts fail, and clients try three times: attempts per request, in the mean.
    """

    def q2(answer: object) -> tuple[Criterion, ...]:
        slips = {2.0: "that's without a limit on attempts: 1 / (1 - p)", 3.0: "only the unlucky ones need all three"}
        return (near(answer, 1 + 0.5 + 0.25, "attempts per request", slips),)

    return Checks({"q1": wire.compute_saved, "q2": q2})

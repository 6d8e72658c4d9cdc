"""The check of lesson 10c. Keys are arithmetic."""

from course.grading import Checks, Criterion, Question, near
from course.lessons.lesson_10c.run import saved_share

LEAVING, READ, PROMPT = 0.4, 0.25, 0.2


def compute_saved(answer: object) -> tuple[Criterion, ...]:
    """What noticing that readers have left saves."""
    key = saved_share(LEAVING, READ, PROMPT)
    slips = {
        LEAVING * READ * (1 - PROMPT): "that's the part they did read",
        LEAVING * (1 - READ): "the prompt was already computed when they left, so it can't be saved",
    }
    return (near(answer, key, "share saved", slips, 0.03, percent=True),)


def checks() -> Checks:
    """Questions about clients that leave and retry.

    q1: the share of compute saved: 40% of readers leave with a quarter read; a fifth of a request is its prompt.
    q2: half of all attempts fail, and clients try three times: attempts per request, in the mean.
    """

    def q2(answer: object) -> tuple[Criterion, ...]:
        slips = {2.0: "that's without a limit on attempts: 1 / (1 - p)", 3.0: "only the unlucky ones need all three"}
        return (near(answer, 1 + 0.5 + 0.25, "attempts per request", slips),)

    questions = {
        "q1": Question(
            "40% of clients leave, having read a quarter. A fifth of a request's compute is its prompt. "
            "What share of all compute does noticing save?",
            "0 to 1",
        ),
        "q2": Question(
            "Half of all attempts fail, and clients try up to three times: attempts per request, on average?",
            "attempts",
        ),
    }
    return Checks({"q1": compute_saved, "q2": q2}, questions)

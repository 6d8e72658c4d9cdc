"""The check of lesson 13. Keys come from the drill's own numbers."""

from course.drills.drill import DrawnDrill
from course.grading import Checks, Criterion, Question, close_to


def checks(dump: DrawnDrill) -> Checks:
    """Questions about the flagship's arithmetic.

    q1: seconds that writing an answer takes, if each gap is as long as the dump's p99 of ITL.
    q2: how many times what its two GPUs can compute the dump's prompts ask for.
    q3: requests in flight, by Little's law.
    q4: percent of the slow user's time with the service that is spent decoding.
    """
    derived = dump.numbers.derived

    def q1(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["decode"].value, "decoding, s"),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["servers"].value, "times the peak"),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["in_flight"].value, "requests in flight"),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, 100 * derived["decode_share"].value, "decoding, %"),)

    questions = {
        "q1": Question(
            "If every gap were as long as the p99 of ITL, how long would an average answer take to generate?", "s"
        ),
        "q2": Question("How many times what two A100s can compute on paper do the prompts alone ask for?", "times"),
        "q3": Question(
            "If every request took that TTFT and decoded that long, how many are in flight? (Little's law)", "requests"
        ),
        "q4": Question("Of all the time that a slow user waits, how much goes into decoding?", "%"),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4}, questions)

"""The check of lesson 13. Keys come from the drill's own numbers."""

from course.drills.amounts import amounts_in, sums_in
from course.drills.checks import check as computed
from course.drills.drill import Commit, DrawnDrill
from course.grading import Checks, Criterion, close_to


def checks(dump: DrawnDrill) -> Checks:
    """Questions about the flagship's arithmetic, and about saying it.

    q1: seconds that writing an answer takes, if each gap is as long as the dump's p99 of ITL.
    q2: how many times what its two GPUs can compute the dump's prompts ask for.
    q3: requests in flight, by Little's law.
    q4: one sentence with a calculation of your own that is right, and what it means.
    """
    derived = dump.numbers.derived

    def q1(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["decode"].value, "decoding, s"),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["servers"].value, "times the peak"),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        return (close_to(answer, derived["in_flight"].value, "requests in flight"),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        if not isinstance(answer, str):
            raise TypeError("write a sentence")
        found = list(sums_in(answer.lower(), amounts_in(answer.lower())))
        right = [each for each in found if each.holds]
        own = next(each.points for each in computed(dump, answer, Commit()) if each.key == "numbers")
        slip = f"'{found[0].words}' doesn't work out" if found and not right else "write it out: a x b = c"
        derives = bool(right) or own > 0
        means = derives and len(answer.split()) > 8
        return (
            Criterion("arithmetic", float(derives), 1, "the arithmetic is right" if derives else slip),
            Criterion("meaning", float(means), 1, "and says what it means" if means else "say what the result means"),
        )

    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4})

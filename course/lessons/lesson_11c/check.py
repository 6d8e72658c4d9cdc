"""The check of lesson 11c. Keys come from the runs that are passed in, and from the catalogue of prices."""

from collections.abc import Sequence

from course.grading import Checks, Criterion, Question, near
from course.lessons.lesson_11.check import TOLERANCE
from course.lessons.lesson_11.run import GPUS
from course.lessons.lesson_11c.run import TARGET, MissedSlo, Route, bill

MENDS = ("setting", "replicas", "neither")


def checks(troubles: Sequence[MissedSlo], route: Route, price: float) -> Checks:
    """Questions of lesson 11c, about money. `price`: dollars for a GPU and hour.

    q1: for each trouble, in order: mended by the "setting" alone, by "replicas" only, or by "neither".
    q2: dollars for a million output tokens of the first trouble, with two replicas.
    q3: dollars for 1000 requests, routed, 10% misrouted, every wrong answer caught.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        given = [str(each).strip().lower() for each in _listed(answer)]
        if len(given) != len(troubles) or not set(given) <= set(MENDS):
            raise ValueError(f"give {len(troubles)} answers in a list, each one of {', '.join(MENDS)}")
        found = []
        for said, trouble in zip(given, troubles):
            key = _mend(trouble)
            kept = bill(trouble, 1, True, price).attainment
            words = {
                "setting": f"with {trouble.change} alone, {kept:.0%} are within the SLO",
                "replicas": f"{trouble.enough(False)} replicas reach {TARGET:.0%}; the setting alone doesn't",
                "neither": f"neither reaches {TARGET:.0%} here",
            }[key]
            found.append(Criterion(trouble.name, float(said == key), 1, "", words))
        return tuple(found)

    def q2(answer: object) -> tuple[Criterion, ...]:
        two = bill(troubles[0], 2, False, price)
        slips = {
            two.per_million
            / 2: "that's for one replica; a second one doubles the rent, and the traffic stays the same",
            two.per_hour: "those are dollars an hour; divide by the millions of output tokens in an hour",
            two.per_million / GPUS: "that counts one GPU per replica; there are four",
            two.per_million * 3600: "rent is per hour, tokens are per second: an hour has 3600 of those",
        }
        return (near(answer, two.per_million, "dollars for a million", slips, TOLERANCE),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        wrong = 0.1
        key = 1000 * route.routed(wrong)
        slips = {
            1000 * route.routed(0.0): "that's with no misrouted requests",
            1000 * route.large: "that's with everything sent to the large model",
            route.routed(wrong): "that's for one request, not a thousand",
        }
        return (near(answer, key, "dollars for 1000", slips, TOLERANCE),)

    questions = {
        "q1": Question(
            "Too few slots, too much work, slow even when idle: what fixes each, in this order? Setting, replicas or "
            "neither, separated by commas.",
            many=True,
        ),
        "q2": Question(
            '"Too few slots", two replicas, the setting as it is: what do a million output tokens cost? (The chart in '
            "The lab says.)",
            "$",
        ),
        "q3": Question(
            "70% easy, 10% misrouted, every wrong answer caught: what do 1,000 requests cost? (The router's sliders in "
            "The lab say.)",
            "$",
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)


def _mend(trouble: MissedSlo) -> str:
    """What one replica and a field do, or else replicas."""
    if trouble.enough(True) == 1:
        return "setting"
    return "replicas" if trouble.enough(False) else "neither"


def _listed(answer: object) -> Sequence[object]:
    if not isinstance(answer, (list, tuple)):
        raise TypeError("give your answers as a list")
    return answer

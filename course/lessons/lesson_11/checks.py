"""The check of lesson 11. Keys come from the runs that are passed in, from the simulator and from the catalogue."""

from collections.abc import Mapping, Sequence

from course.grading import Checks, Criterion, choice, near
from course.lessons.lesson_11.bounds import Ask
from course.lessons.lesson_11.knee import Sweep
from course.lessons.lesson_11.money import GPUS, TARGET, Trouble, bill
from course.lessons.lesson_11.routing import Route
from course.lessons.lesson_11.spike import Story

TOLERANCE = 0.06
MENDS = ("setting", "replicas", "neither")


def checks(sweep: Sweep, ask: Ask) -> Checks:
    """Questions of lesson 11, about the arithmetic and the operating point.

    q1: how many times the data sheet's FLOP/s of one replica the prompts of `ask` want.
    q2: the smallest max-batch of the sweep with the most goodput.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = ask.qps * ask.flops_of_prompt / ask.peak
        slips = {
            key * GPUS: "that is for one GPU: a replica has four",
            key / 2: "each weight is used twice for a token: a multiplication and an addition",
            key / ask.share_reached: "that's against the FLOP/s reached; the question was about the data sheet",
            key * ask.answer / ask.prompt: "those are the output tokens: prompts have ten times as many",
        }
        return (near(answer, key, "times the data sheet", slips, TOLERANCE),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        slots = [point.slots for point in sweep.points]
        if int(answer) not in slots:
            raise ValueError(f"choose one of the sweep: {', '.join(map(str, slots))}")
        here, best = sweep.at(int(answer)), sweep.best
        if here.slots == best.slots:
            return (Criterion("operating point", 1, 1, f"{here.in_time:.0%} within SLO"),)
        why = (
            "requests wait for a slot"
            if here.slots < best.slots
            else "it keeps no more requests within the SLO, and a larger batch makes every step longer"
        )
        words = f"max-batch {here.slots}: {here.in_time:.0%} within SLO; {best.slots} has {best.in_time:.0%}: {why}"
        near = abs(slots.index(here.slots) - slots.index(best.slots)) == 1
        return (Criterion("operating point", 0.5 if near else 0.0, 1, words),)

    return Checks({"q1": q1, "q2": q2})


def spike_checks(stories: Mapping[str, Story]) -> Checks:
    """The question of lesson 11b.

    q1: the measure against the spike with the most requests answered in time by the large model, without a spare.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        chosen = {name: story for name, story in stories.items() if "spare" not in name}
        by_large = {name: story.share("within SLO") - story.share("small") for name, story in chosen.items()}
        told = {
            name: f"{name}: {by_large[name]:.0%} within SLO by the large model, {story.share('refused'):.0%} refused, "
            f"{story.share('small'):.0%} by the small one"
            for name, story in chosen.items()
        }
        best = max(by_large.values())
        said = str(answer).strip().lower()
        key = said if said in by_large and by_large[said] >= best - 0.01 else max(by_large, key=by_large.get)
        return choice(answer, key, told)

    return Checks({"q1": q1})


def money_checks(troubles: Sequence[Trouble], route: Route, price: float) -> Checks:
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
            words = {
                "setting": f"{trouble.change} alone keeps {bill(trouble, 1, True, price).attainment:.0%} within SLO",
                "replicas": f"{trouble.enough(False)} replicas reach {TARGET:.0%}; the setting does not",
                "neither": f"neither reaches {TARGET:.0%} here",
            }[key]
            found.append(Criterion(trouble.name, float(said == key), 1, words))
        return tuple(found)

    def q2(answer: object) -> tuple[Criterion, ...]:
        two = bill(troubles[0], 2, False, price)
        slips = {
            two.per_million / 2: "that is for one replica: the second costs as much, and the traffic is the same",
            two.per_hour: "those are dollars an hour: divide by the millions of output tokens in it",
            two.per_million / GPUS: "that is for one GPU in each: a replica has four",
            two.per_million * 3600: "that is per second: an hour has 3600",
        }
        return (near(answer, two.per_million, "dollars for a million", slips, TOLERANCE),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        wrong = 0.1
        key = 1000 * route.routed(wrong)
        slips = {
            1000 * route.routed(0.0): "that is without a mistake",
            1000 * route.large: "that is all to the large model",
            route.routed(wrong): "that is for one request",
        }
        return (near(answer, key, "dollars for 1000", slips, TOLERANCE),)

    return Checks({"q1": q1, "q2": q2, "q3": q3})


def _mend(trouble: Trouble) -> str:
    """What one replica and a field do, or else replicas."""
    if trouble.enough(True) == 1:
        return "setting"
    return "replicas" if trouble.enough(False) else "neither"


def _listed(answer: object) -> Sequence[object]:
    if not isinstance(answer, (list, tuple)):
        raise TypeError("it should be a list")
    return answer

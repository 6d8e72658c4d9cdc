"""The check of lesson 02b. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, choice, near
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.visits import Visit, mean, visits_of
from course.lessons.lesson_02b.pictures import empty_slot_share
from course.lessons.lesson_02b.simulated import waits_by_length

SLOTS, SLO_S, HELD_S = 16, 2.0, 8.0


def checks(
    ways: Mapping[str, Run], orders: Mapping[str, tuple[Visit, ...]], limits: Mapping[str, Mapping[str, int]]
) -> Checks:
    """Questions about the runs of the lesson.

    q1: which way of batching left the most slot time empty while a request waited.
    q2: the order under which long prompts waited longest.
    q3: the queue limit that answered the most in time: "no limit", "at most 4 queued", ...
    q4: the queue limit for 16 slots, 8 seconds in a slot and 2 seconds of acceptable wait.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        empty = {name: empty_slot_share(visits_of(run), run.config.max_num_seqs) for name, run in ways.items()}
        told = {name: f"{name} left {share:.0%} of the slot time empty" for name, share in empty.items()}
        return choice(answer, max(empty, key=empty.get), told)

    def q2(answer: object) -> tuple[Criterion, ...]:
        waited = {name: waits_by_length(visits)[1] for name, visits in orders.items()}
        told = {
            name: f"under '{name}' long prompts waited {seconds(mean(each))}" if each else f"'{name}' refused them"
            for name, each in waited.items()
        }
        return choice(answer, _best({name: mean(each) for name, each in waited.items()}, answer), told)

    def q3(answer: object) -> tuple[Criterion, ...]:
        told = {name: f"{name}: {c['within SLO']} of {sum(c.values())} within the SLO" for name, c in limits.items()}
        return choice(answer, _best({name: c["within SLO"] for name, c in limits.items()}, answer), told)

    def q4(answer: object) -> tuple[Criterion, ...]:
        slips = {SLOTS * HELD_S / SLO_S: "it's the other way round: slots × acceptable wait ÷ time in a slot"}
        return (near(answer, SLOTS * SLO_S / HELD_S, "queued requests", slips, 0.03),)

    questions = {
        "q1": Question("Which way left the most slot time empty (dashed) while requests waited?", options=tuple(ways)),
        "q2": Question("At 110%, under which order do long prompts wait longest?", options=tuple(orders)),
        "q3": Question("At 130%, which limit serves the most within the SLO?", options=tuple(limits)),
        "q4": Question("16 slots, 8 seconds in a slot, 2 seconds of acceptable wait: what queue limit?", "requests"),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4}, questions)


def _best(values: Mapping[str, float], answer: object) -> str:
    """The name of the highest value; of equal ones, the one that was named."""
    named, most = str(answer).strip().lower(), max(values.values())
    return named if values.get(named) == most else max(values, key=values.get)

"""The check of lesson 11. Keys come from the runs that are passed in, and from the simulator."""

from course.grading import Checks, Criterion, Question, as_count, near
from course.lessons.lesson_11.run import GPUS, Ask, Sweep

TOLERANCE = 0.06


def checks(sweep: Sweep, ask: Ask) -> Checks:
    """Questions of lesson 11, about the arithmetic and the operating point.

    q1: how many times the data sheet's FLOP/s of one replica the prompts of `ask` want.
    q2: the smallest max-batch of the sweep with the most goodput.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = ask.qps * ask.flops_of_prompt / ask.peak
        slips = {
            key * GPUS: "that's against one GPU; a replica has four",
            key / 2: "a weight takes two FLOPs per token, a multiplication and an addition",
            key / ask.share_reached: "that's against the FLOP/s reached; the question was about the data sheet",
            key * ask.answer / ask.prompt: "those are the output tokens; prompts have ten times as many",
        }
        return (near(answer, key, "times the data sheet", slips, TOLERANCE),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        slots = [point.slots for point in sweep.points]
        if as_count(answer) not in slots:
            raise ValueError(f"choose one of the sweep: {', '.join(map(str, slots))}")
        here, best = sweep.at(as_count(answer)), sweep.best
        if here.slots == best.slots:
            return (Criterion("operating point", 1, 1, f"{here.in_time:.0%} within the SLO"),)
        why = (
            "requests wait for a slot"
            if here.slots < best.slots
            else "it doesn't keep more requests within the SLO, and a larger batch makes every step longer"
        )
        words = f"max-batch {here.slots} keeps {here.in_time:.0%} within the SLO: {why}."
        near = abs(slots.index(here.slots) - slots.index(best.slots)) == 1
        return (
            Criterion("operating point", 0.5 if near else 0.0, 1, words, f"{best.slots} keeps {best.in_time:.0%}."),
        )

    questions = {
        "q1": Question(
            "100 prompts of 1,500 tokens a second, for a 70B: how many times the FLOP/s on the data sheet of "
            "four H100s do they need?",
            "times",
        ),
        "q2": Question(
            "70B, 1,500 + 150 tokens, load 80%: which is the smallest max-batch within 1% of the best goodput?",
            "requests",
        ),
    }
    return Checks({"q1": q1, "q2": q2}, questions)

"""The check of lesson 05. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, choice, near
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.ttft_causes import Breakdown
from course.lessons.lesson_05.run import newcomers, ttft_of, writer_gaps

OTHER_PEOPLE = ("queue", "others' prompts", "others' answers")


def checks(newcomer: Breakdown, runs: Mapping[str, Run]) -> Checks:
    """Questions about one newcomer's TTFT, and about the policies.

    q1: its largest cause.
    q2: what's left of it by this split, in seconds, without the queue and other requests' shares.
    q3: the policies by newcomers' median TTFT, fastest first.
    q4: with prefill first, a writer's longest pause in median gaps.
    """
    total = sum(newcomer.values())
    shares = {cause: f"{cause} is {100 * v / total:.0f}% of this TTFT" for cause, v in newcomer.items()}
    others = sum(newcomer.get(cause, 0.0) for cause in OTHER_PEOPLE)
    ttft = {name: percentile(ttft_of(newcomers(run)), 50) for name, run in runs.items()}
    order = sorted(ttft, key=ttft.get)

    def q1(answer: object) -> tuple[Criterion, ...]:
        return choice(answer, max(newcomer, key=newcomer.get), shares)

    def q2(answer: object) -> tuple[Criterion, ...]:
        slips = {
            total: "that's the whole TTFT",
            others: "that's what other requests cost; subtract it from the TTFT",
            newcomer.get("own prefill", 0.0): "that's only its own prefill; the way in and out, bookkeeping and the "
            "rest are its own time as well",
        }
        what = "TTFT less queue and others' shares, seconds"
        return (near(answer, total - others, what, slips, slip_within=0.01),)  # others may cost almost nothing

    def q3(answer: object) -> tuple[Criterion, ...]:
        named = [str(name).strip().lower() for name in answer]
        if sorted(named) != sorted(order):
            raise ValueError(f"give all of {', '.join(order)}, fastest first")
        right = sum(a == b for a, b in zip(named, order))
        told = ", ".join(f"{name} {seconds(ttft[name])}" for name in order)
        hint = "You have it the wrong way round." if named == order[::-1] else ""
        return (Criterion("order", right / len(order), 1, hint, f"Median TTFT: {told}."),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        pauses = writer_gaps(runs["prefill first"])
        key = max(pauses) / percentile(pauses, 50)
        slips = {max(pauses): "that's the pause in seconds; divide it by the median gap"}
        return (near(answer, key, "longest pause over median gap", slips, 0.1),)

    questions = {
        "q1": Question("Which cause is the largest in the first picture?", options=tuple(newcomer)),
        "q2": Question(
            "How much of that TTFT is left without the queue and other requests' shares? met.causes[-1] has the split.",
            "s",
        ),
        "q3": Question(
            "Order the policies by newcomers' median TTFT, fastest first.", f"of {', '.join(runs)}", many=True
        ),
        "q4": Question(
            "Under prefill first, how many median gaps long is a writer's longest pause? "
            "run.writer_gaps(runs['prefill first']) has all gaps.",
            "median gaps",
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4}, questions)

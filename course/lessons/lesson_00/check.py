"""The check of lesson 00. Keys come from the runs that are passed in."""

from course.grading import Checks, Criterion, Question, choice, near
from course.lab.run import Run, phases_of
from course.lab.style import PHASE_LABELS, seconds


def checks(one: Run, eight: Run) -> Checks:
    """Questions about one request alone and about eight that arrived together.

    q1: which phase takes the largest share of E2E at batch size 1?
    q2: the TTFT of request #7 of the eight, seconds.
    q3: the three phases that TTFT is made of, in order.
    """
    mean = one.mean_phases()
    total = sum(mean.values())
    shares = {PHASE_LABELS[p]: f"{PHASE_LABELS[p]} is {100 * v / total:.0f}% of E2E here" for p, v in mean.items()}
    last = eight.row_of(len(eight.rows) - 1)
    parts = list(phases_of(last).values())

    def q1(answer: object) -> tuple[Criterion, ...]:
        return choice(answer, PHASE_LABELS[max(mean, key=mean.get)], shares)

    def q2(answer: object) -> tuple[Criterion, ...]:
        e2e = sum(parts)
        slips = {e2e: f"that's its E2E, {seconds(e2e)}; TTFT ends at the first token"}
        return (near(answer, sum(parts[:3]), "TTFT, seconds", slips),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        named = [str(part).strip().lower().replace("_", " ") for part in answer]
        wanted = list(PHASE_LABELS.values())[:3]
        right = set(named) & set(wanted)
        extra = [name for name in named if name not in wanted]
        words = f"TTFT doesn't include {', '.join(extra)}" if extra else f"you named {len(right)} of 3"
        order = "in the order in which they happen" if named == wanted else f"the order is {', then '.join(wanted)}"
        return (
            Criterion("the three phases", round(max(len(right) - len(extra), 0) / 3, 2), 1, words),
            Criterion("order", float(named == wanted), 1, "", order),
        )

    questions = {
        "q1": Question(
            "With the server to itself, which phase takes most of a request's time?",
            options=tuple(PHASE_LABELS.values()),
        ),
        "q2": Question("TTFT of request #7 in the run with eight? Read it off the timeline.", "s"),
        "q3": Question("Which three phases is TTFT made of, in order?", many=True),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)

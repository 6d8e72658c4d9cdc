"""The check of lesson 01. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, as_count, choice, near
from course.lab.pictures.compare import slowest
from course.lab.run import Run, phases_of
from course.lab.style import PHASE_LABELS, seconds
from course.lab.tables import in_flight

CAP = 2
"""Requests that the client of the lesson may have open at the same time."""


def checks(services: Mapping[str, Run], capped: Run, cap: int = CAP) -> Checks:
    """Questions about the two services and about the client with a cap.

    q1: the phase that dominates the slowest request of service A.
    q2: the same for service B.
    q3: TPOT of service B's request #0, milliseconds.
    q4: the client's cap, from Little's law: a whole number of requests.
    """

    def dominant(name: str, answer: object) -> tuple[Criterion, ...]:
        phases = phases_of(slowest(services[name]))
        total = sum(phases.values())
        options = {
            PHASE_LABELS[p]: f"{PHASE_LABELS[p]} is {100 * v / total:.0f}% of service {name}'s slowest request"
            for p, v in phases.items()
        }
        return choice(answer, PHASE_LABELS[max(phases, key=phases.get)], options)

    def q3(answer: object) -> tuple[Criterion, ...]:
        view = services["B"].row_of(0)
        e2e, ttft = view.borders[-1] - view.borders[0], view.deliveries[0] - view.borders[0]
        tokens = view.num_output_tokens
        hint = f"that's E2E / n, which includes the wait for the first token: E2E {seconds(e2e)}, TTFT {seconds(ttft)}"
        return (near(answer, 1000 * (e2e - ttft) / (tokens - 1), "TPOT, ms", {1000 * e2e / tokens: hint}, 0.03),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        mean = in_flight(capped)
        found = f"requests per second × mean E2E = {mean:.2f} in flight, just below the cap"
        return (Criterion("cap", float(as_count(answer) == cap), 1, "", found),)

    questions = {
        "q1": Question("Which phase dominates the slowest request of service A?", options=tuple(PHASE_LABELS.values())),
        "q2": Question("And of service B?", options=tuple(PHASE_LABELS.values())),
        "q3": Question('TPOT of before["B"].outputs[0]? Its .timeline has e2e and ttft.', "ms"),
        "q4": Question("The closed-loop client's cap, from Little's law?", "requests in flight"),
    }
    return Checks({"q1": lambda a: dominant("A", a), "q2": lambda a: dominant("B", a), "q3": q3, "q4": q4}, questions)

"""What the runs of lesson 05b showed: its finding, and what its prediction is scored by. It measures no claim."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.style import seconds
from course.lessons.lesson_05b.run import FleetWay


def smoother(found: dict[str, FleetWay]) -> Outcome:
    """ITL p99 with whole prompts over that of the split fleet: the answer to a prediction."""
    whole, _, apart = (way.itl_p99 for way in found.values())
    return Outcome(whole / apart, f"ITL p99 {seconds(whole)} with whole prompts, {seconds(apart)} disaggregated")


def load(found: dict[str, FleetWay], qps: float) -> Finding:
    """Three ways to run four replicas under one load."""
    whole, chunked, apart = found.values()
    return tell(
        "05b",
        "load",
        "split_costs_ttft" if apart.ttft_p99 > 1.2 * chunked.ttft_p99 else "split_costs_no_ttft",
        qps=qps,
        whole=whole.ttft_p99,
        whole_gap=whole.itl_p99,
        chunk=chunked.ttft_p99,
        chunk_gap=chunked.itl_p99,
        apart=apart.ttft_p99,
        apart_gap=apart.itl_p99,
    )


EXPERIMENT = ()
MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""What the runs of lesson 05b showed: its finding, and what its prediction is scored by. It measures no claim."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.simulated_70b import itl, ttft
from course.lab.style import seconds
from course.simulator.cluster.run import FleetRun


def smoother(found: dict[str, FleetRun]) -> MeasuredAnswer:
    """ITL p99 with whole prompts over that of the split fleet: the answer to a prediction."""
    whole, _, apart = (itl(run, 99) for run in found.values())
    return MeasuredAnswer(whole / apart, f"ITL p99 {seconds(whole)} with whole prompts, {seconds(apart)} disaggregated")


def load(found: dict[str, FleetRun], qps: float) -> Finding:
    """Three ways to run four replicas under one load."""
    whole, chunk, apart = ({"ttft": ttft(run, 99), "gap": itl(run, 99)} for run in found.values())
    outcome = "split_costs_ttft" if apart["ttft"] > 1.2 * chunk["ttft"] else "split_costs_no_ttft"
    return tell("05b", "load", outcome, qps=qps, whole=whole, chunk=chunk, apart=apart)


MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""What the runs of lesson 11 showed: its verdicts on claims, its findings, and what its prediction is scored by."""

import math
from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.style import number, seconds
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.run import (
    Ask,
    LoadTestPoint,
    RealKnee,
    Sweep,
    a_hundred,
    knee_rate,
    knees,
    load_tests,
    served_share,
    two_models,
)


def served_of_a_hundred(run: fleet.Served, qps: float = 100.0) -> MeasuredAnswer:
    """How many of the requests a second one replica served: the answer to a prediction."""
    rate = qps * served_share(run, qps)
    waited = seconds(max(run.queue))
    return MeasuredAnswer(
        rate, f"{number(rate)}/s were served, and the last of {len(run.sent)} requests waited {waited}"
    )


def tell_hundred(run: fleet.Served, ask: Ask) -> Finding:
    """100 requests a second, on paper and played."""
    times = ask.qps * ask.flops_of_prompt / ask.peak
    return tell("11", "hundred", "here", times=times, share=served_share(run, ask.qps))


def tell_operating_point(found: RealKnee) -> Finding:
    """How many slots this machine needed, and what more of them did."""
    sweep = found.sweep
    first, best, last = sweep.points[0], sweep.best, sweep.points[-1]
    told = {"slots": best.slots, "kept": best.in_time, "first": first.slots, "first_kept": first.in_time}
    worst = min(point.in_time for point in sweep.points)
    if best.in_time - worst < SAME:
        return tell("11", "point", "flat", kept=best.in_time, first=first.slots, last=last.slots)
    outcome = "last" if best is last else "here"
    return tell("11", "point", outcome, last=last.slots, last_kept=last.in_time, **told)


CLIMBS = 1.15
"""A p99 that grows by less from one setting to another does not climb."""
ARTICLE_KNEE = (24, 48)
SAME = 0.05
"""Shares that differ by less are the same."""
SHORTER = 0.5
"""A wait below this share of another one is shorter beyond doubt."""


def a8(large: fleet.Served, small: fleet.Served, qps: float) -> Claim:
    """Two models on the same GPUs, under the same arrivals, of which the large one cannot serve all."""
    seen = [{what: run.p(what, 99) for what in ("queue", "ttft", "tpot")} for run in (large, small)]
    waits = [each["queue"] for each in seen]
    is_shorter = waits[1] < SHORTER * waits[0]
    verdict = "not_shown" if waits[0] < fleet.LIMITS.ttft else "wrong" if is_shorter else "holds"
    return conclude("A8", verdict, qps=qps, waits=waits, large=seen[0], small=seen[1])


def a10(sweeps: Mapping[str, Sweep], crowds: Sequence[LoadTestPoint]) -> Claim:
    """Sweeps of max-batch by name; and load tests, the smallest crowd first."""
    rises = [n for n, sweep in sweeps.items() if sweep.points[-1].ttft > CLIMBS * min(p.ttft for p in sweep.points)]
    inside = sum(ARTICLE_KNEE[0] <= sweep.best.slots <= ARTICLE_KNEE[1] for sweep in sweeps.values())
    grows = all(sweep.points[-1].throughput > CLIMBS * sweep.points[0].throughput for sweep in sweeps.values())
    few, many = crowds[0], crowds[-1]
    crowded = many.ttft > CLIMBS * min(crowd.ttft for crowd in crowds)
    at = "; ".join(
        say("A10.at", name=name, first=s.points[0], last=s.points[-1], best=s.best)
        + (f", KV full at about {s.room:.0f}" if s.room else "")
        for name, s in sweeps.items()
    )
    told = {"within": f"{ARTICLE_KNEE[0]} to {ARTICLE_KNEE[1]}", "grows": say("A10.grows") if grows else ""}
    why = say("A10.why", crowded=say("A10.crowded") if crowded else "", num_kinds=len(sweeps), inside=inside, **told)
    if rises:
        verdict = "only_when_more_slots_delay_ttft"
    else:
        verdict = "only_when_fewest_slots_are_meant" if inside > len(sweeps) / 2 else "wrong"
    return conclude(
        "A10",
        verdict,
        at=at,
        tests=f"{few.clients} to {many.clients} clients: TTFT p99 {seconds(few.ttft)} to {seconds(many.ttft)}",
        those=", ".join(rises),
        why=why,
        **told,
    )


def a16(ask: Ask, flood: fleet.Served, knee_qps: float) -> Claim:
    """The point of operation, on paper and simulated.

    Args:
        flood: all that is asked, sent to one replica.
        knee_qps: requests per second that one replica serves within the SLO.
    """
    need = ask.qps * ask.flops_of_prompt / ask.peak
    share = served_share(flood, ask.qps)
    verdict = "wrong_on_paper" if need > 1 else "wrong_when_simulated" if share < 1 - SAME else "holds"
    told = {"ask": ask.qps * ask.shortest_stay, "replicas": math.ceil(ask.qps / knee_qps)}
    return conclude("A16", verdict, need=need, share=share, knee_qps=knee_qps, **told)


def three_numbers(ask: Ask) -> Html:
    """The lesson's three numbers."""
    need = ask.qps * ask.flops_of_prompt / ask.peak
    return know_cold(
        (
            f"{ask.flops_of_prompt / 1e12:.0f} TFLOP",
            "for a prompt of 1,500 tokens, 70B",
            "2 × weights in the layers × tokens",
        ),
        (
            f"{need:.1f} times",
            "the data sheet's FLOP/s of four H100s, for 100 such prompts a second",
            "÷ (4 × 989 TFLOP/s)",
        ),
        (f"{knee_rate():.1f} requests/s", "that such a replica serves within the SLO", "the worksheet, simulated"),
    )


EXPERIMENT = ("lab/prices.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A8": lambda lab: a8(*two_models()),
    "A10": lambda lab: a10(knees(), load_tests()),
    "A16": lambda lab: a16(Ask(), a_hundred(), knee_rate()),
}

"""What the runs of lesson 11b showed: its verdicts on claims, its findings, and what its predictions are scored by."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.prices import dollars
from course.lab.style import seconds
from course.lessons.lesson_11b import run
from course.simulator.cost.models import find_model

SAVED = ("none of them", "up to a third", "a third to two thirds", "more than two thirds")
NONE_SAVED = 0.01
"""A smaller share of the late requests is none of them."""


def saved_share(day: Mapping[str, run.SpikeStory]) -> float:
    """Share that the autoscaler saves, of the requests that are late if nothing is done. Below 0: more are late."""
    late = day["do nothing"].late
    return 1 - day["autoscaler"].late / late if late else 0.0


def saved_by_the_autoscaler(day: Mapping[str, run.SpikeStory]) -> MeasuredAnswer:
    """How many requests the autoscaler saves: the answer to a prediction."""
    share = saved_share(day)
    answer = SAVED[0] if share < NONE_SAVED else SAVED[min(3, 1 + int(3 * share))]
    late = {name: day[name].late for name in ("do nothing", "autoscaler")}
    told = ", ".join(f"{name}: {number}" for name, number in late.items())
    return MeasuredAnswer(answer, f"requests that missed the limit, of {len(day['autoscaler'].outcomes):,}: {told}")


def tell_spike(day: Mapping[str, run.SpikeStory], price: float) -> Finding:
    """Five answers to a spike.

    Args:
        price: dollars for a GPU and an hour.
    """
    scaler, nothing, small = day["autoscaler"], day["do nothing"], day[run.DEGRADE]
    outcome = "saved_none" if saved_share(day) < NONE_SAVED else "saved_some"
    back = f"was back within its limit {seconds(nothing.back)} after it began"
    drained = "was still above its limit at the end" if math.isinf(nothing.back) else back
    first = tell(
        "11b",
        "autoscaler",
        outcome,
        late=scaler.late,
        alone=nothing.late,
        share=saved_share(day),
        up=scaler.grown,
        drained=drained,
        more=dollars((scaler.gpu_hours - nothing.gpu_hours) * price),
    )
    refusing = day["refuse beyond a limit"]
    then = tell(
        "11b",
        "others",
        "here",
        refused=refusing.share("refused"),
        admitted_late=refusing.late or "none",
        small=small.share("small"),
        small_late=small.late or "none",
        spare=dollars((day["a spare replica, always on"].gpu_hours - nothing.gpu_hours) * price),
    )
    return replace(first, here=f"{first.here} {then.here}")


def until_undone() -> MeasuredAnswer:
    """Seconds from a deploy without CUDA graphs until it is rolled back: the answer to a prediction."""
    found = run.rehearse(
        next(iter(run.CHANGES)), run.CANARY_RATE, run.RULE_WINDOW, run.RULE_LIMIT, run.UNDO["a flag, read at run time"]
    )
    told = (
        f"detected after {seconds(found.detected)}, undone after {seconds(found.undone)}; {found.harmed} late requests"
    )
    return MeasuredAnswer(found.undone, told)


SAME = 0.05
"""Shares that differ by less are the same."""
MOSTLY = 0.5
RARELY = 0.1
"""A share of the requests: fewer than these are few."""


def a21(steep: Mapping[str, run.SpikeStory], gentle: Mapping[str, run.SpikeStory]) -> Claim:
    """The same measures under a spike, and under a climb that stays. Which is best for each?"""
    kind = "within SLO"
    bests = [max(each, key=lambda n: (round(each[n].share(kind), 2), -each[n].gpu_hours)) for each in (steep, gentle)]
    gains = [each["autoscaler"].share(kind) - each["do nothing"].share(kind) for each in (steep, gentle)]
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{n} {story.share('within SLO'):.0%} (refused {story.share('refused'):.0%})" for n, story in by.items()
        )
        for name, by in (("spike, within SLO", steep), ("climb, within SLO", gentle))
    )
    if gains[1] > gains[0] + SAME:
        verdict = "only_when" if bests[0] == bests[1] else "holds"
    else:
        verdict = "wrong" if bests[0] == bests[1] else "not_shown"
    return conclude("A21", verdict, told=told, bests=bests)


def e2(queued: Mapping[str, run.Alarm], written: run.Alarm) -> Claim:
    """Overloads by name whose clients wait for the first word; and one without overload, for the last word."""
    leads = {name: alarm.lead for name, alarm in queued.items() if alarm.lead is not None}
    other = written.lead
    if not leads:
        verdict = "not_shown"
    elif min(leads.values()) <= 0:
        verdict = "wrong"
    else:
        verdict = "only_when" if other is not None and other < min(leads.values()) else "holds"
    told = "; ".join(
        f"{name}: the wait passed {seconds(run.WORRY_S)} {seconds(lead)} before the first time-out"
        for name, lead in leads.items()
    )
    if other is None:
        last = "no client gave up"
    elif math.isinf(other):
        last = "the alarm never fired before clients gave up"
    else:
        last = f"it fired {seconds(abs(other))} {'before' if other > 0 else 'after'} the first gave up"
    return conclude("E2", verdict, told=told or "no time-outs", last=last)


def e3(played: Mapping[float, run.Sleep]) -> Claim:
    """Scale to zero by requests an hour."""
    told = "; ".join(say("E3.rows", rate=rate, p=p) for rate, p in played.items())
    rare, often = played[min(played)], played[max(played)]
    if rare.share_of_ttft < MOSTLY:
        return conclude("E3", "wrong", told=told)
    fewest = min(p.cold for p in played.values() if p.share_of_ttft >= MOSTLY)
    more = say("E3.few_are_enough", fewest=fewest) if fewest < RARELY else ""
    return conclude("E3", "only_when" if often.share_of_ttft < MOSTLY else "holds", told=told, rare=rare, more=more)


def three_numbers() -> Html:
    """The lesson's three numbers."""
    load, alarm, patience, keep, per_hour, disk = 1.3, 2, 10, 300, 10, 3e9
    weights = find_model("llama-3-70b").stored_bytes("bfloat16")
    return know_cold(
        (
            f"{(patience - alarm) * load / (load - 1):.0f} s",
            f"from a queue wait of {alarm} s to clients that give up at {patience} s, at a load of {load:.0%}",
            "(T − w) ρ / (ρ − 1)",
        ),
        (
            f"{weights / disk:.0f} s",
            f"to read a 70B's {weights / 1e9:.0f} GB from a disk of 3 GB/s",
            "bytes over bandwidth",
        ),
        (
            f"{math.exp(-per_hour * keep / 3600):.0%} of requests",
            f"find the replica gone, at {per_hour} an hour, if it's released after {keep} s",
            "e^(−λK)",
        ),
    )


EXPERIMENT = ("lab/prices.py", "lessons/lesson_11/run.py", "lessons/lesson_11/fleet.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A21": lambda lab: a21(run.stories(run.Spike()), run.stories(run.Spike(gentle=True))),
    "E2": lambda lab: e2(*run.alarm_runs()),
    "E3": lambda lab: e3(run.sleeps()),
}

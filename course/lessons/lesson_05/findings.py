"""What the runs of lesson 05 showed, in words."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import Outcome
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lessons.lesson_05 import traffic
from course.lessons.lesson_05.causes import Breakdown

NEIGHBOURS = ("queue", "others' prompts", "others' answers")


def waterfall(met: Breakdown, alone: Breakdown) -> Finding:
    """How much of the newcomer's TTFT belongs to other requests."""
    others, total = sum(met[cause] for cause in NEIGHBOURS), sum(met.values())
    cold = met["cold cache"]
    mine = {"own": met["own prefill"], "own_alone": alone["own prefill"], "cold": cold, "alone": sum(alone.values())}
    outcome = "others" if others > total / 2 else "mine"
    return tell("05", "waterfall", outcome, share=others / total, total=total, others=others, **mine)


def pauses(runs: Mapping[str, Run]) -> Outcome:
    """A writer's p99 gap under prefill first, over that of mixed: the answer to a prediction."""
    whole, mixed = (traffic.pause(runs[name]) for name in ("prefill first", "mixed"))
    return Outcome(whole / mixed, f"writers' p99 gap: prefill first {seconds(whole)}, mixed {seconds(mixed)}")


def policies(runs: Mapping[str, Run]) -> Finding:
    """Who gained and who paid under each policy."""
    ttft = {name: percentile(traffic.ttft_of(traffic.newcomers(run)), 50) for name, run in runs.items()}
    gap = {name: traffic.pause(run) for name, run in runs.items()}
    best, smooth = min(ttft, key=ttft.get), min(gap, key=gap.get)
    told = "; ".join(
        f"*{name}*: median TTFT {seconds(ttft[name])}, writers' p99 gap {seconds(gap[name])}" for name in runs
    )
    return tell("05", "policies", "here", told=told, best=best, smooth=smooth)


def calm(runs: Mapping[str, Run]) -> Finding:
    """Requests that never meet: is there anything to decide? What equal steps differ by is noise, within CEILING."""
    plans = [traffic.plan(run) for run in runs.values()]
    ttft = [percentile(run.ttft, 50) for run in runs.values()]
    low, high = min(ttft), max(ttft)
    is_same = all(plan == plans[0] for plan in plans)
    outcome = "other" if not is_same else "disturbed" if ratio_of(low, high) > CEILING else "same"
    return tell("05", "calm", outcome, steps=len(plans[0]), low=low, high=high)


def rush(runs: Mapping[str, Run]) -> Finding:
    """Prompts that arrive faster than they can be prefilled."""
    keys = {name: name.replace(" ", "_") for name in runs}
    gap = {keys[name]: traffic.pause(run) for name, run in runs.items()}
    medians = {name: percentile(traffic.ttft_of(traffic.newcomers(run)), 50) for name, run in runs.items()}
    ttft = {f"{keys[name]}_ttft": value for name, value in medians.items()}
    return tell("05", "rush", "here", **gap, **ttft)

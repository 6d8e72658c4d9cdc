"""What the runs of lessons 11, 11b and 11c showed, in words. Their texts are those of lesson 11."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lab.predict import Outcome
from course.lab.style import number, seconds
from course.lessons.lesson_11 import fleet, traffic
from course.lessons.lesson_11.bounds import Ask
from course.lessons.lesson_11.money import Trouble
from course.lessons.lesson_11.spike import Story
from course.lessons.lesson_11.traffic import RealKnee


def served(run: fleet.Served, qps: float = 100.0) -> Outcome:
    """How many of the requests a second one replica served: the answer to a prediction."""
    rate = qps * traffic.served_share(run, qps)
    waited = seconds(float(run.queue.max()))
    return Outcome(rate, f"{number(rate)}/s were served, and the last of {len(run.sent)} requests waited {waited}")


def hundred(run: fleet.Served, ask: Ask) -> Finding:
    """100 requests a second, on paper and played."""
    times = ask.qps * ask.flops_of_prompt / ask.peak
    return tell("11", "hundred", "here", times=times, share=traffic.served_share(run, ask.qps))


def operating_point(found: RealKnee) -> Finding:
    """How many slots this machine needed, and what more of them did."""
    first, best, last = found.sweep.points[0], found.sweep.best, found.sweep.points[-1]
    told = {"slots": best.slots, "kept": best.in_time, "first": first.slots, "first_kept": first.in_time}
    outcome = "last" if best is last else "here"
    return tell("11", "point", outcome, last=last.slots, last_kept=last.in_time, **told)


def spike(day: Mapping[str, Story]) -> Finding:
    """Five answers to a spike."""
    shares = {name: each.share("within SLO") for name, each in day.items()}
    best = max((name for name in shares if "spare" not in name), key=shares.get)
    told = "; ".join(f"*{name}*: {share:.0%} within SLO" for name, share in shares.items())
    refused = max(each.share("refused") for each in day.values())
    late, nothing = day["autoscaler"].back, day["do nothing"].back
    outcome = "never" if late == float("inf") else "late"
    alone = "not in this picture" if nothing == float("inf") else f"after {seconds(nothing)}"
    return tell("11", "spike", outcome, told=told, best=best, refused=refused, late=late, alone=alone)


def mends(troubles: Mapping[str, Trouble]) -> Finding:
    """Which trouble a field mends, and which takes replicas."""
    lines = []
    for name, trouble in troubles.items():
        field, replicas = trouble.enough(True) == 1, trouble.enough(False)
        how = "the setting alone" if field else f"{replicas} replicas" if replicas else "neither"
        lines.append(f"*{name}*: {how}")
    return tell("11", "mends", "here", told="; ".join(lines))

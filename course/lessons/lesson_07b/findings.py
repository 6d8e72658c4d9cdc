"""What the runs of lesson 07b showed, in words."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lessons.lesson_07.bets import ALL, SOME, recalled
from course.lessons.lesson_07.losses import Loss
from course.lessons.lesson_07.needle import Found
from course.lessons.lesson_07b.tiers import later_ttft
from course.measure.quality import Floors
from course.simulator.cluster.run import FleetRun


def forgotten(found: Mapping[str, Mapping[int, Found]]) -> Finding:
    """What became of the needle once it had left the window."""
    whole, *_, windowed = found.values()
    far = max(windowed)
    share = recalled({**whole, far: windowed[far]}, far)
    outcome = "kept" if share >= ALL else "some" if share >= SOME else "gone"
    return tell("07b", "needle", outcome, far=far, whole=whole[far].share, windowed=windowed[far].share)


def rounding(found: Mapping[str, Loss]) -> Finding:
    """Whether int8 KV kept the floors, beside what it saves."""
    loss = found["KV in int8"]
    broken = ", ".join(loss.broken(Floors()))
    outcome = "broken" if broken else "kept"
    return tell(
        "07b", "rounding", outcome, share=loss.kv_share, rise=loss.rise, agreement=loss.agreement, broken=broken
    )


def tiered(fleets: Mapping[str, FleetRun]) -> Finding:
    """Which tier paid."""
    (alone, host, store), rates = map(later_ttft, fleets.values()), [run.prefix_hit_rate for run in fleets.values()]
    outcome = "slow" if store > 0.8 * alone else "both"
    return tell("07b", "tiers", outcome, alone=alone, host=host, store=store, before=rates[0], after=rates[1])

"""What the runs of lesson 07 showed, in words."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lessons.lesson_07.trace import Trace

FALLS = 0.9
"""Throughput that stays above this share of the best hasn't fallen."""


def full(trace: Trace) -> Finding:
    """One chat more than fits."""
    return tell("07", "full", "here", running=trace.most_running, of=len(trace.outcomes), blocks=trace.num_blocks)


def reserved(traces: Mapping[str, Trace]) -> Finding:
    """Reserving the longest request against paging, on the same pool."""
    whole, paged = traces["max_len"], traces["on_demand"]
    told = {"empty": 1 - whole.filled_share, "paged_empty": 1 - paged.filled_share}
    steps = {"steps": len(whole.frames), "paged_steps": len(paged.frames)}
    return tell("07", "reserved", "here", running=whole.mean_running, paged_running=paged.mean_running, **told, **steps)


def thrashing(shrunk: Mapping[str, Mapping[int, Trace]]) -> Finding:
    """What a pool that is too small costs."""
    roomy, tight = (shrunk["recompute"][pool] for pool in (max(shrunk["recompute"]), min(shrunk["recompute"])))
    again = tight.again / tight.tokens
    steps = {"steps": len(tight.frames), "roomy_steps": len(roomy.frames)}
    swapped = shrunk["swap"][min(shrunk["swap"])].swapped_blocks
    outcome = "thrash" if tight.evictions else "none"
    return tell("07", "thrash", outcome, again=again, evictions=tight.evictions, swapped=swapped, **steps)


def crowd(traces: Mapping[int, Trace]) -> Finding:
    """What reserving more for each request did to throughput."""
    least, most = traces[min(traces)], traces[max(traces)]
    outcome = "fell" if most.tokens_per_s < FALLS * least.tokens_per_s else "same"
    speeds = {"fast": least.tokens_per_s, "slow": most.tokens_per_s}
    return tell("07", "crowd", outcome, many=least.mean_running, few=most.mean_running, **speeds)

"""What the runs of lesson 04 showed, in words."""

import itertools
from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_04 import tables, tenants
from course.lessons.lesson_04.cache_model import FIFO, LRU
from course.lessons.lesson_04.policies import agreement
from course.lessons.lesson_04.traffic import hit_rate, later_ttft
from course.simulator.cluster.run import FleetRun


def stamp(first: Run, last: Run) -> Finding:
    """What one line did, in two places."""
    was, now = hit_rate(first), hit_rate(last)
    ttft = {"was_ttft": later_ttft(first), "now_ttft": later_ttft(last)}
    fell = ttft["now_ttft"] < 0.9 * ttft["was_ttft"]
    return tell("04", "stamp", "fell" if fell and now > was else "not", was=was, now=now, **ttft)


def one_fix(ladder: Mapping[str, float]) -> Finding:
    """Which fix of the template paid."""
    names, rates = list(ladder), list(ladder.values())
    gains = [now - before for before, now in itertools.pairwise(rates)]
    best = max(range(len(gains)), key=lambda i: gains[i])
    ends = {"start": rates[0], "end": rates[-1], "first": rates[1]}
    return tell("04", "ladder", "here", best=names[best + 1], gain=100 * gains[best], first_name=names[1], **ends)


def orders(runs: Mapping[str, Run], agree: tuple[int, int]) -> Finding:
    """In turns against grouped, with room for all tenants and for two of three."""
    rates = {f"{name.split()[0]}_{name.split()[-1]}": hit_rate(run) for name, run in runs.items()}
    outcome = "grouped" if rates["small_grouped"] > rates["small_turns"] + 0.05 else "same"
    return tell("04", "orders", outcome, right=agree[0], asked=agree[1], **rates)


def evicted(runs: Mapping[str, Run]) -> Finding:
    """What the engine's own eviction policies found on the same visits."""
    lru, fifo, ttl = map(hit_rate, runs.values())
    right = sum(agreement(runs[name], policy)[0] for name, policy in (("LRU", LRU), ("FIFO", FIFO)))
    told = {"right": right, "asked": 2 * len(runs["LRU"].finished)}
    return tell("04", "evicted", "fifo_worse" if lru > fifo + 0.02 else "alike", lru=lru, fifo=fifo, ttl=ttl, **told)


def cold(found: Mapping[int, tuple[float, float]]) -> Outcome:
    """How many times the warm TTFT the cold one is, for the longest prefix: the answer to a prediction."""
    first, later = found[max(found)]
    return Outcome(first / later, f"{seconds(first)} cold, {seconds(later)} warm")


def warm(found: Mapping[int, tuple[float, float]]) -> Finding:
    """What a cached prefix saves, long and short."""
    (short, (short_cold, short_warm)), (long, (long_cold, long_warm)) = min(found.items()), max(found.items())
    times = {"short_cold": short_cold, "short_warm": short_warm, "long_cold": long_cold, "long_warm": long_warm}
    return tell("04", "warm", "here", short=short, long=long, **times)


def routers(fleet: Mapping[str, FleetRun]) -> Finding:
    """What prefix-aware routing gained over the others, with many tenants."""
    told = {
        f"{name.split()[0].replace('-', '_')}_{what}": value
        for name, run in fleet.items()
        for what, value in (
            ("found", run.prefix_hit_rate),
            ("p50", tenants.ttft(run, 50)),
            ("p99", tenants.ttft(run, 99)),
        )
    }
    better = told["prefix_aware_found"] > told["round_found"] + 0.05
    return tell("04", "routers", "better" if better else "same", **told)


def hot(fleet: Mapping[str, FleetRun]) -> Finding:
    """One prefix for all: what the prefix-aware router did with it."""
    shares = {name.split()[0].replace("-", "_"): tenants.busiest_share(run) for name, run in fleet.items()}
    slow = {f"{name.split()[0].replace('-', '_')}_p99": tenants.ttft(run, 99) for name, run in fleet.items()}
    uneven = shares["prefix_aware"] > shares["round"] + 0.1
    return tell("04", "hot", "uneven" if uneven else "even", **shares, **slow)


def nothing(runs: Mapping[str, Run]) -> Finding:
    """Nothing shared: the cache on and off. The difference is noise, unless it's too large for that."""
    cached, plain = runs.values()
    on, off = later_ttft(cached), later_ttft(plain)
    outcome = "disturbed" if ratio_of(on, off) > CEILING else "here"
    return tell("04", "nothing", outcome, found=hit_rate(cached), on=on, off=off)


def blocks(runs: Mapping[int, Run]) -> Finding:
    """How many of the shared tokens each block size found."""
    found = {size: max(view.num_cached_tokens for view in run.views) for size, run in runs.items()}
    shared = tables.shared_tokens(next(iter(runs.values())))
    sizes = {"small": min(found), "large": max(found)}
    return tell(
        "04", "blocks", "here", shared=shared, small_found=found[min(found)], large_found=found[max(found)], **sizes
    )

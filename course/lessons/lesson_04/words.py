"""What the runs of lesson 04 showed: its findings, its claims, and what its predictions are scored by."""

import itertools
from collections.abc import Callable, Mapping

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude, say
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import Outcome
from course.lab.prefix_cache import FIFO, LRU, STAMPS, clocked_trace, model_hit_rate
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_04.run import (
    agreement,
    busiest_share,
    by_gap,
    cache_savings,
    client_ttft,
    cold_and_warm,
    conversation,
    hit_rate,
    later_ttft,
    rates_of,
    room_for,
    session_cuts,
    shared_tokens,
    stamped,
    tenants,
    ttfts,
)
from course.simulator.cluster.run import FleetRun


def stamp(first: Run, last: Run) -> Finding:
    """What one line did, in two places."""
    was, now = hit_rate(first), hit_rate(last)
    ttft = {"was_ttft": later_ttft(first), "now_ttft": later_ttft(last)}
    fell = ttft["now_ttft"] < 0.9 * ttft["was_ttft"]
    return tell("04", "stamp", "ttft_fell" if fell and now > was else "ttft_did_not_fall", was=was, now=now, **ttft)


def one_fix(ladder: Mapping[str, float]) -> Finding:
    """Which fix of the template paid."""
    names, rates = list(ladder), list(ladder.values())
    gains = [now - before for before, now in itertools.pairwise(rates)]
    best = max(range(len(gains)), key=lambda i: gains[i])
    ends = {"start": rates[0], "end": rates[-1], "first": rates[1]}
    return tell("04", "one_fix", "always", best=names[best + 1], gain=100 * gains[best], first_name=names[1], **ends)


def orders(runs: Mapping[str, Run], agree: tuple[int, int]) -> Finding:
    """In turns against grouped, with room for all tenants and for two of three."""
    rates = {f"{name.split()[0]}_{name.split()[-1]}": hit_rate(run) for name, run in runs.items()}
    outcome = "grouping_helps" if rates["small_grouped"] > rates["small_turns"] + 0.05 else "order_changes_little"
    return tell("04", "orders", outcome, right=agree[0], asked=agree[1], **rates)


def evicted(runs: Mapping[str, Run]) -> Finding:
    """What the engine's own eviction policies found on the same visits."""
    lru, fifo, ttl = map(hit_rate, runs.values())
    right = sum(agreement(runs[name], policy)[0] for name, policy in (("LRU", LRU), ("FIFO", FIFO)))
    told = {"right": right, "asked": 2 * len(runs["LRU"].finished)}
    return tell(
        "04", "evicted", "fifo_worse" if lru > fifo + 0.02 else "fifo_as_good", lru=lru, fifo=fifo, ttl=ttl, **told
    )


def cold(found: Mapping[int, tuple[float, float]]) -> Outcome:
    """How many times the warm TTFT the cold one is, for the longest prefix: the answer to a prediction."""
    first, later = found[max(found)]
    return Outcome(first / later, f"{seconds(first)} cold, {seconds(later)} warm")


def warm(found: Mapping[int, tuple[float, float]]) -> Finding:
    """What a cached prefix saves, long and short."""
    (short, (short_cold, short_warm)), (long, (long_cold, long_warm)) = min(found.items()), max(found.items())
    times = {"short_cold": short_cold, "short_warm": short_warm, "long_cold": long_cold, "long_warm": long_warm}
    return tell("04", "warm", "always", short=short, long=long, **times)


def routers(fleet: Mapping[str, FleetRun]) -> Finding:
    """What prefix-aware routing gained over the others, with many tenants."""
    told = {
        f"{name.split()[0].replace('-', '_')}_{what}": value
        for name, run in fleet.items()
        for what, value in (
            ("found", run.prefix_hit_rate),
            ("p50", client_ttft(run, 50)),
            ("p99", client_ttft(run, 99)),
        )
    }
    better = told["prefix_aware_found"] > told["round_found"] + 0.05
    return tell("04", "routers", "prefix_aware_finds_more" if better else "every_replica_knows_all", **told)


def hot(fleet: Mapping[str, FleetRun]) -> Finding:
    """One prefix for all: what the prefix-aware router did with it."""
    shares = {name.split()[0].replace("-", "_"): busiest_share(run) for name, run in fleet.items()}
    slow = {f"{name.split()[0].replace('-', '_')}_p99": client_ttft(run, 99) for name, run in fleet.items()}
    uneven = shares["prefix_aware"] > shares["round"] + 0.1
    return tell("04", "hot", "uneven" if uneven else "even", **shares, **slow)


def nothing(runs: Mapping[str, Run]) -> Finding:
    """Nothing shared: the cache on and off. The difference is noise, unless it's too large for that."""
    cached, plain = runs.values()
    on, off = later_ttft(cached), later_ttft(plain)
    outcome = "disturbed" if ratio_of(on, off) > CEILING else "noise"
    return tell("04", "nothing", outcome, found=hit_rate(cached), on=on, off=off)


def blocks(runs: Mapping[int, Run]) -> Finding:
    """How many of the shared tokens each block size found."""
    found = {size: max(view.num_cached_tokens for view in run.views) for size, run in runs.items()}
    shared = shared_tokens(next(iter(runs.values())))
    sizes = {"small": min(found), "large": max(found)}
    return tell(
        "04", "blocks", "always", shared=shared, small_found=found[min(found)], large_found=found[max(found)], **sizes
    )


F5_PREFIX = 2000
GAPS_S = (180, 600, 3600)
"""Mean gaps between a user's turns: the article's own, and two longer ones. Seconds."""


def f1(first: Run, last: Run) -> Claim:
    """A time at the start, against the same time at the end."""
    lost, later = hit_rate(first) < 0.05, hit_rate(last)
    return conclude(
        "F1",
        "time_in_front_did_no_harm" if not lost else "only_before_what_is_shared" if later > 0.2 else "little_to_find",
        hits=sum(view.num_cached_tokens > 0 for view in first.views[1:]),
        of=len(first.views) - 1,
        later=later,
        later_ttft=later_ttft(first),
        last_ttft=later_ttft(last),
        clocks=", ".join(f"once {name} {model_hit_rate(clocked_trace(coarse)):.0%}" for name, coarse in STAMPS.items()),
    )


def f5(found: Mapping[int, tuple[float, float]], here: Mapping[str, Run]) -> Claim:
    """A shared prefix of 2000 tokens, cold and warm. `found`: prefix length -> (cold, warm) TTFT at 70B."""
    cold, warm = found[F5_PREFIX]
    left, small = warm / cold, min(found)
    small_cold, small_warm = found[small]
    last = here["last line"]
    first_ttft = next(value for value in ttfts(last) if value is not None)
    return conclude(
        "F5",
        "nine_tenths_gone"
        if left <= 0.1
        else "only_where_prefill_is_the_ttft"
        if left < 0.9
        else "prefill_was_not_the_ttft",
        cold=cold,
        warm=warm,
        left=left,
        small=small,
        small_cold=small_cold,
        small_warm=small_warm,
        last=last,
        local=f"{seconds(first_ttft)} and {seconds(later_ttft(last))}",
    )


def f6(rates: Mapping[str, float]) -> Claim:
    """Grouped or in turns, in a cache with room for all, and in one without."""
    gain_small = rates["small cache, grouped"] - rates["small cache, in turns"]
    gain_roomy = rates["roomy cache, grouped"] - rates["roomy cache, in turns"]
    verdict = (
        "order_made_no_difference"
        if gain_small <= 0.1
        else "only_in_a_small_cache"
        if abs(gain_roomy) < 0.05
        else "in_a_roomy_cache_too"
    )
    return conclude("F6", verdict, found="; ".join(f"{name}: {rate:.0%} found" for name, rate in rates.items()))


def d9(cached: Run, plain: Run, large: Mapping[int, float]) -> Claim:
    """A session's TTFT, turn by turn: the share that the cache saves. `large`: the same at 70B, by turn."""
    here = cache_savings(cached, plain)
    found = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    turn, last = max(here), max(large)
    grows = found[0] == 0 and abs(here[1]) < 0.2 and found[-1] > 0.3 and here[turn] > 0 and large[last] > large[1] + 0.1
    return conclude(
        "D9",
        "only_with_a_long_history" if grows else "saving_did_not_grow",
        by_turn=_by_turn(here),
        found=", ".join(f"{share:.0%}" for share in found),
        by_turn_70b=_by_turn(large),
        turn=turn,
        turn_saved=here[turn],
        last=last,
        last_saved=large[last],
    )


def d13(by_gap: Mapping[float, Mapping[str, float]], agree: tuple[int, int]) -> Claim:
    """A time limit against LRU, by how long users stay away."""
    short, long = min(by_gap), max(by_gap)
    limit = next(name for name in by_gap[short] if "since use" in name)
    lost = {gap: 100 * (rates["LRU"] - rates[limit]) for gap, rates in by_gap.items()}
    is_modelled = agree[0] == agree[1]
    return conclude(
        "D13",
        "model_disagrees"
        if not is_modelled
        else "only_past_the_limit"
        if lost[long] > lost[short] + 10
        else "limit_forgot_little",
        gaps="; ".join(say("D13.at_gap", gap=gap, limit=rates[limit], rates=rates) for gap, rates in by_gap.items()),
        agree=agree,
        short=lost[short],
        short_gap=short,
        long=lost[long],
        long_gap=long,
    )


def _by_turn(saved: Mapping[int, float]) -> str:
    return ", ".join(f"{turn}: {100 * share:.0f}%" for turn, share in saved.items())


PLAIN: dict[str, object] = {"async_scheduling": False}
"""A step that is scheduled ahead does not know its newest token, so an answer's last block may stay without a name; the
cache model gives every full block one."""


def order_runs(lab: Lab) -> dict[str, Run]:
    """Three tenants, in turns and grouped, in a cache with room for all, and in one with room for two."""
    roomy = {how: lab.run(tenants(lab, how == "grouped"), **PLAIN) for how in ("in turns", "grouped")}
    room = room_for(roomy["in turns"], 2)
    small = {how: lab.run(tenants(lab, how == "grouped"), num_kv_blocks=room, **PLAIN) for how in roomy}
    return {
        f"{size} cache, {how}": run for size, runs in (("roomy", roomy), ("small", small)) for how, run in runs.items()
    }


def _f1(lab: Lab) -> Claim:
    return f1(*(lab.run(stamped(lab, place, 3)) for place in ("first line", "last line")))


def _f5(lab: Lab) -> Claim:
    here = {"last line": lab.run(stamped(lab, "last line", 3))}
    return f5(cold_and_warm(simulated_70b.deployment(), (250, F5_PREFIX)), here)


def _d9(lab: Lab) -> Claim:
    chat = conversation(lab)
    cached, plain = lab.run(chat), lab.run(chat, enable_prefix_caching=False)
    return d9(cached, plain, session_cuts(simulated_70b.deployment(), count=16))


def _d13(lab: Lab) -> Claim:
    run = lab.run(tenants(lab, grouped=False), **PLAIN)
    return d13(by_gap(GAPS_S), agreement(run))


EXPERIMENT = ("lab/prefix_cache.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "D9": _d9,
    "D13": _d13,
    "F1": _f1,
    "F5": _f5,
    "F6": lambda lab: f6(rates_of(order_runs(lab))),
}


HARDLY, LESS = "hardly changes: the prompts are as long as before", "falls, but by less than half"
HALF, MORE = "falls to less than half", "rises"
FALLS = (HARDLY, LESS, HALF, MORE)
NOTHING, SOME, MOST = "next to nothing, as before", "about a third", "more than half"
SHARES = (NOTHING, SOME, MOST)


def moved(before: Run, after: Run) -> Outcome:
    """What became of TTFT, first requests apart."""
    was, now = later_ttft(before), later_ttft(after)
    ratio = now / was
    answer = MORE if ratio > 1.1 else HARDLY if ratio > 0.9 else LESS if ratio > 0.5 else HALF
    found = f"found {hit_rate(before):.0%} and then {hit_rate(after):.0%} of all prompt tokens"
    return Outcome(answer, f"median TTFT after the first request {seconds(was)} to {seconds(now)}; {found}")


def shared(run: Run) -> Outcome:
    """How much the cache found."""
    rate = hit_rate(run)
    answer = NOTHING if rate < 0.1 else SOME if rate < 0.5 else MOST
    return Outcome(answer, f"{rate:.0%} of all prompt tokens were found")

"""What the runs of lesson 04 showed: its findings, its claims, and what its predictions are scored by."""

import itertools
from collections.abc import Callable, Mapping

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import MeasuredAnswer
from course.lab.prefix_cache import STAMPS, clocked_trace, model_hit_rate
from course.lab.run import Run
from course.lab.style import seconds, size, with_minus
from course.lessons.lesson_04.explorer import PRICE_LISTS, CachePrice
from course.lessons.lesson_04.run import (
    PLAIN,
    agreement,
    busiest_share,
    by_gap,
    cache_savings,
    cold_and_warm,
    conversation,
    hit_rate,
    later_ttft,
    order_runs,
    rates_of,
    session_cuts,
    shared_tokens,
    stamped,
    tenants,
    ttfts,
)
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- predictions

HARDLY, LESS = "barely changes: the prompts are as long as before", "falls, but by less than half"
HALF, MORE = "falls to less than half", "rises"
FALLS = (HARDLY, LESS, HALF, MORE)
NOTHING, SOME, MOST = "almost nothing, as before", "about a third", "more than half"
SHARES = (NOTHING, SOME, MOST)


def moved(before: Run, after: Run) -> MeasuredAnswer | str:
    """What became of TTFT, first requests apart: the answer to a prediction, unless it rose although more was found."""
    was, now = later_ttft(before), later_ttft(after)
    ratio = now / was
    answer = MORE if ratio > 1.1 else HARDLY if ratio > 0.9 else LESS if ratio > 0.5 else HALF
    found = f"{hit_rate(before):.0%} and then {hit_rate(after):.0%} of all prompt tokens found"
    told = f"median TTFT after the first request {seconds(was)} to {seconds(now)}; {found}"
    if answer == MORE and hit_rate(after) > hit_rate(before):
        return f"{told}, and a hit can't make it longer"
    return MeasuredAnswer(answer, told)


def shared(run: Run) -> MeasuredAnswer:
    """How much the cache found."""
    rate = hit_rate(run)
    answer = NOTHING if rate < 0.1 else SOME if rate < 0.5 else MOST
    return MeasuredAnswer(answer, f"{rate:.0%} of all prompt tokens were found")


# ---------------------------------------------------------------- findings

NEARLY_NOTHING = 0.05
"""A smaller part of the prompt tokens."""


def stamp(first: Run, last: Run) -> Finding:
    """What one line did, in two places."""
    was, now = hit_rate(first), hit_rate(last)
    was_ttft, now_ttft = later_ttft(first), later_ttft(last)
    ratio = now_ttft / was_ttft
    if now <= was:
        outcome = "nothing_found"
    else:
        outcome = "ttft_rose" if ratio > 1.1 else "ttft_did_not_fall" if ratio > 0.9 else "ttft_fell"
    found = max(view.num_cached_tokens for view in last.views)
    return tell("04", "stamp", outcome, was=was, now=now, was_ttft=was_ttft, now_ttft=now_ttft, found=found)


def one_fix(ladder: Mapping[str, float]) -> Finding:
    """Which fix of the template paid."""
    names, rates = list(ladder), list(ladder.values())
    gains = [now - before for before, now in itertools.pairwise(rates)]
    best = max(range(len(gains)), key=lambda i: gains[i])
    is_last = best == len(gains) - 1 and max(gains[:-1]) < NEARLY_NOTHING
    return tell(
        "04",
        "one_fix",
        "only_the_last" if is_last else "one_paid",
        start=rates[0],
        end=rates[-1],
        best=names[best + 1],
        gain=100 * gains[best],
        first_name=names[1],
        first=rates[1],
        before=rates[-2],
        num_fixes=len(gains),
    )


def orders(runs: Mapping[str, Run], agree: tuple[int, int]) -> Finding:
    """In turns against grouped, with room for all tenants and for two of three."""
    rates = {name: hit_rate(run) for name, run in runs.items()}
    helps = rates["small cache, grouped"] > rates["small cache, in turns"] + 0.05
    outcome = "grouping_helps" if helps else "order_changes_little"
    return tell("04", "orders", outcome, right=agree[0], asked=agree[1], rates=rates)


def cold(found: Mapping[int, tuple[float, float]]) -> MeasuredAnswer:
    """How many times the warm TTFT the cold one is, for the longest prefix: the answer to a prediction."""
    first, later = found[max(found)]
    return MeasuredAnswer(first / later, f"{seconds(first)} cold, {seconds(later)} warm")


def warm(found: Mapping[int, tuple[float, float]]) -> Finding:
    """What a cached prefix saves, long and short."""
    short, long = ({"tokens": n, "cold": found[n][0], "warm": found[n][1]} for n in (min(found), max(found)))
    reading = simulated_70b.deployment().step_time().weights_s
    return tell("04", "warm", "always", short=short, long=long, reading=reading)


def routers(fleet: Mapping[str, FleetRun]) -> Finding:
    """What prefix-aware routing gained over the others, with many tenants."""
    by_turn, by_load, by_prefix = (_routed(fleet[name]) for name in ("round robin", "least busy", "prefix-aware"))
    better = by_prefix["found"] > by_turn["found"] + 0.05
    if not better:
        outcome = "every_replica_knows_all"
    else:
        outcome = "finds_more_p99_rose" if by_prefix["p99"] > by_turn["p99"] else "finds_more"
    return tell("04", "routers", outcome, by_turn=by_turn, by_load=by_load, by_prefix=by_prefix)


def hot(fleet: Mapping[str, FleetRun]) -> Finding:
    """One prefix for all: what the prefix-aware router did with it."""
    by_turn, by_prefix = (_routed(fleet[name]) for name in ("round robin", "prefix-aware"))
    outcome = "uneven" if by_prefix["busiest"] > by_turn["busiest"] + 0.1 else "even"
    return tell("04", "hot", outcome, by_turn=by_turn, by_prefix=by_prefix)


def _routed(run: FleetRun) -> dict[str, float]:
    ttft = {f"p{q}": simulated_70b.ttft(run, q) for q in (50, 99)}
    waits = {"queue": simulated_70b.phase_means(run)["queue"]}
    return {
        "found": run.prefix_hit_rate,
        "busiest": busiest_share(run),
        "itl": simulated_70b.itl(run, 50),
        **ttft,
        **waits,
    }


def nothing(runs: Mapping[str, Run]) -> Finding:
    """Nothing shared: the cache on and off. The difference is noise, unless it's too large for that; on a simulated
    device nothing scatters."""
    cached, plain = runs.values()
    on, off = later_ttft(cached), later_ttft(plain)
    is_noise = ratio_of(on, off) <= CEILING
    outcome = "simulated" if cached.simulated_on else "noise" if is_noise else "disturbed"
    return tell("04", "nothing", outcome, found=hit_rate(cached), on=on, off=off)


def blocks(runs: Mapping[int, Run]) -> Finding:
    """How many of the shared tokens each block size found."""
    found = {size: max(view.num_cached_tokens for view in run.views) for size, run in runs.items()}
    small, large = min(found), max(found)
    ends = {"small": small, "small_found": found[small], "large": large, "large_found": found[large]}
    return tell("04", "blocks", "always", shared=shared_tokens(runs[small]), **ends)


# ---------------------------------------------------------------- three numbers


def pays_from(price: CachePrice) -> float:
    """The hit rate above which a hosted cache is cheaper than none."""
    return (price.write - 1) / (price.write - price.read)


def three_numbers() -> Html:
    per_token = simulated_70b.token_bytes(simulated_70b.deployment())
    price = next(iter(PRICE_LISTS.values()))
    return know_cold(
        (
            f"{size(per_token)} a token",
            "KV of a 70B with GQA, in 16 bits",
            "2 × 80 layers × 8 KV heads × 128 × 2 bytes",
        ),
        (size(F5_PREFIX * per_token), f"KV of a prefix of {F5_PREFIX:,} tokens", "stored once for all that share it"),
        (
            f"{pays_from(price):.0%} of requests",
            "the hit rate from which a hosted cache pays",
            f"(w - 1) / (w - r), writing at {price.write:g} and reading at {price.read:g} times the input price",
        ),
    )


# ---------------------------------------------------------------- claims

F5_PREFIX = 2000
GAPS_S = (180, 600, 3600)
"""Mean gaps between a user's turns: the article's own, and two longer ones. Seconds."""


def f1(first: Run, last: Run) -> Claim:
    """A time at the start, against the same time at the end."""
    lost, later = hit_rate(first) < 0.05, hit_rate(last)
    if not lost:
        verdict = "time_in_front_did_no_harm"
    else:
        verdict = "only_before_what_is_shared" if later > 0.2 else "little_to_find"
    return conclude(
        "F1",
        verdict,
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
    if left <= 0.1:
        verdict = "nine_tenths_gone"
    else:
        verdict = "only_where_prefill_is_the_ttft" if left < 0.9 else "prefill_was_not_the_ttft"
    return conclude(
        "F5",
        verdict,
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
    if gain_small <= 0.1:
        verdict = "order_made_no_difference"
    else:
        verdict = "only_in_a_small_cache" if abs(gain_roomy) < 0.05 else "in_a_roomy_cache_too"
    return conclude("F6", verdict, found="; ".join(f"{name}: {rate:.0%} found" for name, rate in rates.items()))


def d9(cached: Run, plain: Run, large: Mapping[int, float]) -> Claim:
    """A session's TTFT, turn by turn: the share that the cache saves. `large`: the same at 70B, by turn."""
    here = cache_savings(cached, plain)
    found = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    turn, last = max(here), max(large)
    grows = found[0] == 0 and abs(here[1]) < 0.2 and found[-1] > 0.3 and here[turn] > 0 and large[last] > large[1] + 0.1
    if grows:
        verdict = "only_with_a_long_history"
    else:
        verdict = "prompts_too_short" if cached.simulated_on else "saving_did_not_grow"
    return conclude(
        "D9",
        verdict,
        by_turn=_by_turn(here),
        found=", ".join(f"{share:.0%}" for share in found),
        scatter=say("D9.scatter") if abs(here[1]) >= NEARLY_NOTHING else "",
        by_turn_70b=_by_turn(large),
        turn=turn,
        turn_saved=here[turn],
        last=last,
        last_saved=large[last],
    )


def d13(rates_by_gap: Mapping[float, Mapping[str, float]], agree: tuple[int, int]) -> Claim:
    """A time limit against LRU, by how long users stay away."""
    short, long = min(rates_by_gap), max(rates_by_gap)
    limit = next(name for name in rates_by_gap[short] if "since use" in name)
    lost = {gap: 100 * (rates["LRU"] - rates[limit]) for gap, rates in rates_by_gap.items()}
    if agree[0] != agree[1]:
        verdict = "model_disagrees"
    else:
        verdict = "only_past_the_limit" if lost[long] > lost[short] + 10 else "limit_forgot_little"
    return conclude(
        "D13",
        verdict,
        gaps="; ".join(
            say("D13.at_gap", gap=gap, limit=rates[limit], rates=rates) for gap, rates in rates_by_gap.items()
        ),
        agree=agree,
        short=lost[short],
        short_gap=short,
        long=lost[long],
        long_gap=long,
    )


def _by_turn(saved: Mapping[int, float]) -> str:
    percents = {turn: round(100 * share) for turn, share in saved.items()}  # whole: none is minus nothing
    return ", ".join(f"{turn}: {with_minus(str(percent))}%" for turn, percent in percents.items())


def _f5(lab: Lab) -> Claim:
    here = {"last line": lab.run(stamped(lab, "last line", 3))}
    return f5(cold_and_warm(simulated_70b.deployment(), (250, F5_PREFIX)), here)


def _d9(lab: Lab) -> Claim:
    chat = conversation(lab)
    cached, plain = lab.run(chat), lab.run(chat, enable_prefix_caching=False)
    return d9(cached, plain, session_cuts(simulated_70b.deployment(), count=16))


EXPERIMENT = ("lab/prefix_cache.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "D9": _d9,
    "D13": lambda lab: d13(by_gap(GAPS_S), agreement(lab.run(tenants(lab, grouped=False), **PLAIN))),
    "F1": lambda lab: f1(*(lab.run(stamped(lab, place, 3)) for place in ("first line", "last line"))),
    "F5": _f5,
    "F6": lambda lab: f6(rates_of(order_runs(lab))),
}

"""What the runs of lesson 07 showed: its findings and its claims."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.pool_trace import PoolTrace
from course.lab.style import number, size
from course.lessons.lesson_07 import run, simulated
from course.lessons.lesson_07.run import GQA, MHA, Account, kinds_of
from course.lessons.lesson_07.simulated import WatchedRun
from course.simulator.cost.models import find_model

# ---------------------------------------------------------------- findings

FALLS = 0.9
"""Throughput that stays above this share of the best hasn't fallen."""


def full(trace: PoolTrace) -> Finding:
    """One chat more than fits."""
    return tell("07", "full", "one_waits", running=trace.most_running, of=len(trace.outcomes), blocks=trace.num_blocks)


def reserved(traces: Mapping[str, PoolTrace]) -> Finding:
    """Reserving the longest request against paging, on the same pool."""
    whole, paged = traces["max_len"], traces["on_demand"]
    told = {"empty": 1 - whole.filled_share, "paged_empty": 1 - paged.filled_share}
    steps = {"steps": len(whole.frames), "paged_steps": len(paged.frames)}
    return tell(
        "07", "reserved", "left_empty", running=whole.mean_running, paged_running=paged.mean_running, **told, **steps
    )


def thrashing(shrunk: Mapping[str, Mapping[int, PoolTrace]]) -> Finding:
    """What a pool that is too small costs."""
    roomy, tight = (shrunk["recompute"][pool] for pool in (max(shrunk["recompute"]), min(shrunk["recompute"])))
    again = tight.again / tight.tokens
    steps = {"steps": len(tight.frames), "roomy_steps": len(roomy.frames)}
    outcome = "computed_twice" if tight.evictions else "all_fit"
    swap = shrunk["swap"][min(shrunk["swap"])]
    more = swap.tokens > roomy.tokens
    also = " (it did compute some prompt tokens that the large pool had found in its cache)" if more else ""
    return tell(
        "07", "thrash", outcome, again=again, evictions=tight.evictions, swapped=swap.swapped_blocks, also=also, **steps
    )


def crowd(traces: Mapping[int, PoolTrace]) -> Finding:
    """What reserving more for each request did to throughput."""
    least, most = traces[min(traces)], traces[max(traces)]
    outcome = "throughput_fell" if most.tokens_per_s < FALLS * least.tokens_per_s else "throughput_stayed"
    rates = [traces[tokens].tokens_per_s for tokens in sorted(traces)]
    if any(after > before / FALLS for before, after in itertools.pairwise(rates)):  # fewer requests, more throughput
        outcome = "disturbed"
    speeds = {"fast": least.tokens_per_s, "slow": most.tokens_per_s}
    return tell("07", "crowd", outcome, many=least.mean_running, few=most.mean_running, **speeds)


# ---------------------------------------------------------------- claims

A11_TOKENS, A11_BYTES = 1500, 600e6
"""The article's example."""
NEAR = 0.1
TENFOLD, GAINED = 10.0, 1.1
"""Times as many tokens per second: claimed; and the least that is a gain."""
D12_SAVED, LEAST_SAVED = 0.6, 0.05
"""Share of the KV that paging saved: claimed; and the least that is a saving."""
FEWER, SLOWER = 0.9, 0.8
"""Shares of what the others reach; nearer than that is no difference. Seconds are noisier than counts."""
LINEAR, QUADRATIC = 1.0, 2.0


def a11(seventy_b: Account, by_hand: int, in_pool: int) -> Claim:
    """One chat of a 70B by its shape; and the formula against a pool of this lab's model.

    Args:
        by_hand, in_pool: bytes of a token of the lab's model, by the formula and by its tensors.
    """
    chat = replace(seventy_b, shape=replace(seventy_b.shape, gpus=0), context=A11_TOKENS, window=None)  # no copies
    kinds = {name: kind.chat_bytes for name, kind in kinds_of(chat).items()}
    return conclude(
        "A11",
        "holds_as_two_statements" if by_hand == in_pool else "formula_and_pool_differ",
        a11_tokens=A11_TOKENS,
        told=", ".join(f"{name} {size(kept)}" for name, kept in kinds.items()),
        by_hand=by_hand,
        in_pool=in_pool,
        off=A11_BYTES / kinds[GQA] - 1,
        gqa_size=size(kinds[GQA]),
        mha_size=size(kinds[MHA]),
    )


def admitted_when_full(trace: PoolTrace) -> int:
    """Requests that began in a step that left no block unheld."""
    begun = [outcome.first_step for outcome in trace.outcomes if outcome.first_step]
    return sum(len(trace.frames[step - 1].holders()) == trace.num_blocks for step in begun)


def a12(tight: PoolTrace, roomy: PoolTrace, swapped: PoolTrace) -> Claim:
    """The same requests in a pool that is too small, in one that is not, and with swapping.

    Args:
        roomy: nothing is evicted.
    """
    line, none = (max(frame.in_line for frame in trace.frames) for trace in (tight, roomy))
    last_steps = [sum(outcome.last_step for outcome in trace.outcomes) for trace in (tight, roomy)]
    num_tight, ended = len(tight.outcomes), sum(outcome.finished for outcome in tight.outcomes)
    if not tight.evictions:
        verdict = "no_eviction"
    elif admitted_when_full(tight) or ended < num_tight:
        verdict = "admitted_or_killed"
    else:
        verdict = "only_when_held_by_running"
    return conclude(
        "A12",
        verdict,
        num_tight=num_tight,
        tight=tight,
        admitted_when_full=admitted_when_full(tight),
        line=line,
        roomy=roomy,
        none=none,
        ended=ended,
        same=sum(a.output == b.output for a, b in zip(tight.outcomes, roomy.outcomes)),
        late=last_steps[0] / last_steps[1],
        swapped=swapped,
    )


def a15(ladders: Mapping[str, Mapping[str, WatchedRun]], cache: float) -> Claim:
    """Shared prefixes, MQA and 8 bits, one on top of the other, at 70B.

    Args:
        ladders: by kind of traffic.
        cache: bytes of KV a token, first step over last.
    """
    gains = {kind: simulated.gain(ladder) for kind, ladder in ladders.items()}
    told = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {number(s.tokens_per_s)} tokens/s ({s.limit})" for name, s in ladder.items())
        for kind, ladder in ladders.items()
    )
    ends = ", ".join(f"{list(ladder.values())[-1].limit} ({kind})" for kind, ladder in ladders.items())
    if min(gains.values()) >= TENFOLD:
        verdict = "tenfold_for_all"
    elif max(gains.values()) >= TENFOLD:
        verdict = "tenfold_for_some"
    else:
        verdict = "tenfold_for_none" if max(gains.values()) >= GAINED else "kv_was_not_short"
    return conclude(
        "A15",
        verdict,
        told=told,
        cache=cache,
        reached=", ".join(f"×{value:.1f} for {kind}" for kind, value in gains.items()),
        why=say("A15.what_stops_it", cache=cache, ends=ends),
    )


def b2(crowd: Mapping[int, PoolTrace], prefixes: Mapping[str, PoolTrace]) -> Claim:
    """More KV set aside for each request; and a cache of prefixes beside.

    Args:
        crowd: by tokens set aside; 0 = on demand. Of the first and the last, the fastest of several runs.
        prefixes: "on" and "off".
    """
    base, most = crowd[0], crowd[max(crowd)]
    fewer, slower = most.mean_running / base.mean_running, most.tokens_per_s / base.tokens_per_s
    told = (
        say("B2.one_setting", n=f"{n} tokens each" if n else "on demand", trace=trace) for n, trace in crowd.items()
    )
    slots = {name: trace.mean_running for name, trace in prefixes.items()}
    as_many = abs(slots["on"] / slots["off"] - 1) < 1 - FEWER
    if fewer >= FEWER:
        verdict = "room_for_all"
    elif slower < SLOWER:
        verdict = "fewer_and_slower"
    else:
        verdict = "fewer_but_not_slower"
    return conclude(
        "B2",
        verdict,
        base=base,
        told=", ".join(told),
        turns=run.TURNS,
        slots=slots,
        beside=say("B2.prefixes_took_no_slots" if as_many else "B2.prefixes_took_slots"),
    )


def exponent(by_length: Mapping[int, float]) -> float:
    """p in  KV ~ length ** p, from the shortest to the longest."""
    short, long = min(by_length), max(by_length)
    return math.log(by_length[long] / by_length[short]) / math.log(long / short)


def d8(traces: Mapping[int, PoolTrace]) -> Claim:
    """Requests of several lengths, alone: what do they hold?"""
    held = {length: max(blocks for _, blocks in trace.blocks_of(0)) for length, trace in traces.items()}
    bytes_ = {length: blocks * traces[length].block_bytes for length, blocks in held.items()}
    told = ", ".join(f"{length} tokens {held[length]} blocks ({size(kept)})" for length, kept in bytes_.items())
    if len(held) < 2:
        return conclude("D8", "one_length_only", told=told)
    power = exponent(bytes_)
    is_square = abs(power - QUADRATIC) < abs(power - LINEAR)
    return conclude("D8", "square" if is_square else "linear", told=told, power=power)


def saved(traces: Mapping[str, PoolTrace]) -> float:
    """Share of held places that `on_demand` saved over `max_len`, for the same requests."""
    return 1 - traces["on_demand"].held_block_steps / traces["max_len"].held_block_steps


def d12(by_limit: Mapping[int, Mapping[str, PoolTrace]]) -> Claim:
    """Reserved up front against block by block, under several context limits, with room for all requests.

    Args:
        by_limit: by max_model_len: traces of the same requests, by kv_reservation.
    """
    found = {limit: saved(traces) for limit, traces in by_limit.items()}
    some = next(iter(by_limit.values()))
    ends = [outcome.num_prompt_tokens + len(outcome.output) for outcome in some["on_demand"].outcomes]
    if max(found.values()) < LEAST_SAVED:
        verdict = "as_long_as_reserved"
    else:
        as_claimed = all(abs(share - D12_SAVED) < NEAR for share in found.values())
        verdict = "about_as_claimed" if as_claimed else "only_with_such_a_reservation"
    return conclude(
        "D12",
        verdict,
        mean=sum(ends) / len(ends),
        told=", ".join(f"{limit} tokens reserved: {share:.0%} saved" for limit, share in found.items()),
        some=some,
    )


def _measure_a12(lab: Lab) -> Claim:
    tight, roomy = (run.eight(lab, pool) for pool in (run.TIGHT_POOL, run.ROOMY_POOL))
    return a12(tight, roomy, run.eight(lab, run.TIGHT_POOL, "swap"))


def cache_shrinks() -> float:
    """KV bytes of a token, the first of simulated.STEPS over the last."""
    first, last = (
        simulated.token_bytes(fields) for fields in list(simulated.STEPS.values())[:: len(simulated.STEPS) - 1]
    )
    return first / last


def three_numbers(large: Account) -> Html:
    """The lesson's three numbers."""
    chat = replace(large, context=1500, window=None)
    kv, small = chat.kv, find_model("llama-3.1-8b").kv_bytes_per_token("bfloat16")
    return know_cold(
        (
            f"{chat.token_bytes:,} B",
            "KV of a token, Llama-3-70B in bf16",
            f"2 × {kv.layers} × {kv.vectors // 2} × 128 × 2 B",
        ),
        (f"{chat.chats}", "chats of 1,500 tokens fit beside its weights on four H100s", "the bill, below"),
        (f"{1e9 / small:,.0f}", "tokens of KV in a GB, Llama-3.1-8B in bf16", f"1e9 / {small:,} B"),
    )


EXPERIMENT = ("lab/model_shape.py", "lab/pool_trace.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A11": lambda lab: a11(run.large(run.accounts(lab)), run.by_hand(lab), run.in_pool(lab)),
    "A12": _measure_a12,
    "A15": lambda lab: a15(simulated.ladders(), cache_shrinks()),
    "B2": lambda lab: b2(run.crowded(lab), run.with_and_without_prefixes(lab)),
    "D8": lambda lab: d8(run.lengths(lab)),
    "D12": lambda lab: d12(run.limits(lab, run.eight(lab, run.ROOMY_POOL))),
}

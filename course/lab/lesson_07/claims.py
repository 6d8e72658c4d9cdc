"""The claims of lesson 07: the KV cache as a working set."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_07 import bets, bill, sim_70b, traffic
from course.lab.lesson_07.bill import GQA, MHA, Account, kinds_of
from course.lab.lesson_07.needle import Found
from course.lab.lesson_07.sim_70b import Served
from course.lab.lesson_07.trace import Trace
from course.lab.style import number, size

A11_TOKENS, A11_BYTES = 1500, 600e6
"""The article's example."""
NEAR = 0.1
TENFOLD, GAINED = 10.0, 1.1
"""Times as many tokens per second: claimed; and the least that is a gain."""
D12_SAVED, D14_SAVED, D14_WINDOW = 0.6, 0.7, 2048
D14_LENGTHS = (1500, 4096, 8192, 32768)
FEWER, SLOWER = 0.9, 0.8
"""Of what the others reach; nearer than that is no difference. Seconds are noisier than counts."""
LINEAR, QUADRATIC = 1.0, 2.0


def a11(seventy_b: Account, by_hand: int, in_pool: int) -> Claim:
    """One chat of a 70B by its shape; and the formula against a pool of this lab's model.

    Args:
        by_hand, in_pool: bytes of a token of the lab's model, by the formula and by its tensors.
    """
    chat = replace(seventy_b, shape=replace(seventy_b.shape, gpus=0), context=A11_TOKENS, window=None)  # no copies
    kinds = {name: kind.chat_bytes for name, kind in kinds_of(chat).items()}
    told = ", ".join(f"{name} {size(kept)}" for name, kept in kinds.items())
    off = A11_BYTES / kinds[GQA] - 1
    if by_hand != in_pool:
        verdict = say("A11.not_shown", by_hand=by_hand, in_pool=in_pool)
    else:
        verdict = say("A11.holds", off=off, a11_tokens=A11_TOKENS, gqa_size=size(kinds[GQA]), mha_size=size(kinds[MHA]))
    return Claim(
        "A11", say("A11.measured", a11_tokens=A11_TOKENS, told=told, by_hand=by_hand, in_pool=in_pool), verdict
    )


def admitted_when_full(trace: Trace) -> int:
    """Requests that began in a step that left no block unheld."""
    begun = [outcome.first_step for outcome in trace.outcomes if outcome.first_step]
    return sum(len(trace.frames[step - 1].holders()) == trace.num_blocks for step in begun)


def a12(tight: Trace, roomy: Trace, swapped: Trace) -> Claim:
    """The same requests in a pool that is too small, in one that is not, and with swapping.

    Args:
        roomy: nobody is evicted.
    """
    line, none = (max(frame.in_line for frame in trace.frames) for trace in (tight, roomy))
    ended = sum(outcome.finished for outcome in tight.outcomes)
    same = sum(a.output == b.output for a, b in zip(tight.outcomes, roomy.outcomes))
    late = sum(outcome.last_step for outcome in tight.outcomes) / sum(outcome.last_step for outcome in roomy.outcomes)
    if not tight.evictions:
        verdict = say("A12.not_shown")
    elif admitted_when_full(tight) or ended < len(tight.outcomes):
        verdict = say("A12.wrong")
    else:
        verdict = say("A12.only_when")
    return Claim(
        "A12",
        say(
            "A12.measured",
            num_tight=len(tight.outcomes),
            tight=tight,
            admitted_when_full=admitted_when_full(tight),
            line=line,
            roomy=roomy,
            none=none,
            ended=ended,
            same=same,
            late=late,
            swapped=swapped,
        ),
        verdict,
    )


def a15(ladders: Mapping[str, Mapping[str, Served]], cache: float) -> Claim:
    """Shared prefixes, MQA and 8 bits, one on top of the other, at 70B.

    Args:
        ladders: by kind of traffic.
        cache: bytes of KV a token, first step over last.
    """
    gains = {kind: sim_70b.gain(ladder) for kind, ladder in ladders.items()}
    told = "; ".join(
        f"{kind}: "
        + ", ".join(
            f"{name} {number(served.tokens_per_s)} tokens/s ({served.limit})" for name, served in ladder.items()
        )
        for kind, ladder in ladders.items()
    )
    reached = ", ".join(f"×{value:.1f} for {kind}" for kind, value in gains.items())
    ends = ", ".join(f"{list(ladder.values())[-1].limit} ({kind})" for kind, ladder in ladders.items())
    why = say("A15.why", cache=cache, ends=ends)
    if min(gains.values()) >= TENFOLD:
        verdict = say("A15.holds", reached=reached)
    elif max(gains.values()) < GAINED:
        verdict = say("A15.not_shown")
    elif max(gains.values()) < TENFOLD:
        verdict = say("A15.wrong", reached=reached, why=why)
    else:
        verdict = say("A15.only_when", reached=reached, why=why)
    return Claim("A15", say("A15.measured", told=told, cache=cache), verdict)


def b2(crowd: Mapping[int, Trace], prefixes: Mapping[str, Trace]) -> Claim:
    """More KV set aside for each request; and a cache of prefixes beside.

    Args:
        crowd: by tokens set aside; 0 = on demand. Of the first and the last, the fastest of several runs.
        prefixes: "on" and "off".
    """
    base, most = crowd[0], crowd[max(crowd)]
    fewer, slower = most.mean_running / base.mean_running, most.tokens_per_s / base.tokens_per_s
    told = ", ".join(
        say("B2.told", n=f"{n} tokens each" if n else "on demand", trace=trace) for n, trace in crowd.items()
    )
    seats = {name: trace.mean_running for name, trace in prefixes.items()}
    beside = (
        say("B2.beside")
        if abs(seats["on"] / seats["off"] - 1) < 1 - FEWER
        else "Here the cache of prefixes changed the number of seats as well."
    )
    if fewer < FEWER and slower < SLOWER:
        verdict = say("B2.only_when", beside=beside)
    elif fewer < FEWER:
        verdict = say("B2.not_shown")
    else:
        verdict = say("B2.not_shown_2")
    return Claim("B2", say("B2.measured", base=base, told=told, turns=traffic.TURNS, seats=seats), verdict)


def exponent(by_length: Mapping[int, float]) -> float:
    """p in  KV ~ length ** p, from the shortest to the longest."""
    short, long = min(by_length), max(by_length)
    return math.log(by_length[long] / by_length[short]) / math.log(long / short)


def d8(traces: Mapping[int, Trace]) -> Claim:
    """Requests of several lengths, alone: what do they hold?"""
    held = {length: max(blocks for _, blocks in trace.blocks_of(0)) for length, trace in traces.items()}
    bytes_ = {length: blocks * traces[length].block_bytes for length, blocks in held.items()}
    power = exponent(bytes_) if len(held) > 1 else LINEAR
    told = ", ".join(f"{length} tokens {held[length]} blocks ({size(kept)})" for length, kept in bytes_.items())
    if len(held) < 2:
        verdict = say("D8.not_shown")
    elif abs(power - QUADRATIC) < abs(power - LINEAR):
        verdict = say("D8.holds")
    else:
        verdict = say("D8.wrong", power=power)
    return Claim("D8", f"one request at a time: {told}.", verdict)


def saved(traces: Mapping[str, Trace]) -> float:
    """Share of held places that `on_demand` saved over `max_len`, for the same requests."""
    slots = traffic.token_slots(traces)
    return 1 - slots["on_demand"] / slots["max_len"]


def d12(by_limit: Mapping[int, Mapping[str, Trace]]) -> Claim:
    """Reserved up front against block by block, under several context limits, with room for everybody.

    Args:
        by_limit: by max_model_len: traces of the same requests, by kv_reservation.
    """
    found = {limit: saved(traces) for limit, traces in by_limit.items()}
    some = next(iter(by_limit.values()))
    told = ", ".join(f"{limit} tokens reserved: {share:.0%} saved" for limit, share in found.items())
    mean = sum(outcome.num_prompt_tokens + len(outcome.output) for outcome in some["on_demand"].outcomes) / len(
        some["on_demand"].outcomes
    )
    if max(found.values()) < 0.05:
        verdict = say("D12.not_shown")
    elif all(abs(share - D12_SAVED) < NEAR for share in found.values()):
        verdict = say("D12.holds")
    else:
        verdict = say("D12.only_when")
    return Claim("D12", say("D12.measured", mean=mean, told=told, some=some), verdict)


def d14(model: Account, windowed: Trace, window: int, found: Mapping[str, Mapping[int, Found]]) -> Claim:
    """What a window frees, by length; that the engine really gives it back; what is lost.

    Args:
        windowed: a trace of one long request; `window` its size.
        found: needles, by name of the configuration: all in sight first, the window with sinks last.
    """
    frees = {
        n: 1 - replace(model, window=D14_WINDOW).chat_bytes_at(n) / replace(model, window=None).chat_bytes_at(n)
        for n in D14_LENGTHS
    }
    told = ", ".join(f"{n:,} tokens: {share:.0%}" for n, share in frees.items())
    tokens, held = windowed.blocks_of(0)[-1]
    back = -(-tokens // windowed.block_size) - held
    whole, *_, cut = found.values()
    far = max(cut)
    before, after = bets.recalled(whole, far), bets.recalled({**whole, far: cut[far]}, far)
    even = D14_WINDOW / (1 - D14_SAVED)
    if before - after <= bets.SOME:
        price = say("D14.price")
    elif after < bets.SOME:
        price = say("D14.price_2")
    else:
        price = "And it is not free: part of what has left the window is forgotten."
    verdict = say("D14.not_shown") if back <= 0 else say("D14.only_when", even=even, price=price)
    return Claim(
        "D14",
        say(
            "D14.measured",
            d14_window=D14_WINDOW,
            told=told,
            window=window,
            tokens=tokens,
            back=back,
            held=held,
            far=far,
            share_whole=whole[far].share,
            share_cut=cut[far].share,
            sinks=traffic.SINKS,
        ),
        verdict,
    )


# ---------------------------------------------------------------- small experiments, for the ledger


def measure_a11(lab: Lab) -> Claim:
    return a11(bill.large(bill.accounts(lab)), bill.by_hand(lab), bill.in_pool(lab))


def measure_a12(lab: Lab) -> Claim:
    tight, roomy = (traffic.eight(lab, pool) for pool in (traffic.TIGHT_POOL, traffic.ROOMY_POOL))
    return a12(tight, roomy, traffic.eight(lab, traffic.TIGHT_POOL, "swap"))


def measure_d14(lab: Lab) -> Claim:
    window, _ = traffic.probe(lab)
    return d14(
        bill.large(bill.accounts(lab)), traffic.growing(lab, window, traffic.SINKS), window, traffic.looking(lab)
    )


def cache_shrinks() -> float:
    """KV bytes of a token, the first of sim_70b.STEPS over the last."""
    first, last = (sim_70b.token_bytes(fields) for fields in list(sim_70b.STEPS.values())[:: len(sim_70b.STEPS) - 1])
    return first / last


EXPERIMENT = ("lesson_02/simulated.py", "lesson_06/shapes.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A11": measure_a11,
    "A12": measure_a12,
    "A15": lambda lab: a15(sim_70b.ladders(), cache_shrinks()),
    "B2": lambda lab: b2(traffic.crowded(lab), traffic.with_and_without_prefixes(lab)),
    "D8": lambda lab: d8(traffic.lengths(lab)),
    "D12": lambda lab: d12(traffic.limits(lab, traffic.eight(lab, traffic.ROOMY_POOL))),
    "D14": measure_d14,
}

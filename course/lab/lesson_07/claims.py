"""The claims of lesson 07: the KV cache as a working set."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import ANATOMY, DECOMPOSING, TECHNIQUES, Claim
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
        verdict = f"not shown: by the formula a token takes {by_hand:,} bytes here, and the pool has {in_pool:,}."
    else:
        verdict = (
            "holds roughly, as two statements: the formula is MHA's, where KV heads × head size is the hidden size; "
            f"the example is a GQA model's, and {off:+.0%} off. General form: 2 × layers × KV heads × head size × "
            f"length × bytes. With it, {A11_TOKENS} tokens of a 70B are {size(kinds[GQA])} as Llama-3-70B is built, "
            f"and would be {size(kinds[MHA])} under MHA."
        )
    return Claim(
        "A11",
        "The KV of a request is 2 × layers × hidden size × length × bytes, less with GQA; 1500 tokens of a 70B are "
        "600 MB.",
        ANATOMY,
        f"{A11_TOKENS} tokens of a model of 70B's depth and width, 16 bits, in whole blocks: {told}. The formula "
        f"against "
        f"a pool of this lab's model: {by_hand:,} and {in_pool:,} bytes a token.",
        verdict,
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
        verdict = "not shown: nobody was evicted in this run."
    elif admitted_when_full(tight) or ended < len(tight.outcomes):
        verdict = "wrong here: somebody was admitted to a full pool, or evicted and never finished."
    else:
        verdict = (
            "holds only when 'full' means held by running requests (a block that only keeps an old prefix is free), "
            "and "
            "'restarted' means its keys and values. Nobody is admitted then, and the queue grows. But the evicted are "
            "not "
            "killed, and no answer starts over: what was written stays, and is read again like a prompt (recompute), "
            "or "
            "the blocks come back from the host's memory (swap)."
        )
    return Claim(
        "A12",
        "When the KV cache is full nothing is admitted and the queue grows; evicted requests are killed or restarted.",
        ANATOMY,
        f"{len(tight.outcomes)} requests, {tight.num_blocks} blocks: {admitted_when_full(tight)} admitted while all "
        f"blocks were "
        f"held, at most {line} in line (in {roomy.num_blocks} blocks: {none}); {tight.evictions} evictions, {ended} "
        f"answers "
        f"complete, {same} word for word as in the large pool; they ended ×{late:.2f} as late, in steps. "
        f"{tight.again} tokens "
        f"were computed again; with swapping {swapped.again}, and {swapped.swapped_blocks} blocks were copied.",
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
    why = (
        f"A token's KV shrank ×{cache:.0f}. Throughput follows only as far as room is what keeps the batch small; in "
        f"the end something else did: {ends}. And MQA is no setting: a model has to be trained with it."
    )
    if min(gains.values()) >= TENFOLD:
        verdict = f"holds in these runs: {reached}."
    elif max(gains.values()) < GAINED:
        verdict = "not shown: memory for KV was not short in these runs, so nothing was gained."
    elif max(gains.values()) < TENFOLD:
        verdict = f"wrong in these runs: {reached}. {why}"
    else:
        verdict = f"holds only when the KV cache is what limits the batch, from first to last: {reached}. {why}"
    return Claim(
        "A15",
        "Sharing KV, multi-query attention and int8 attention together cut the cost per token tenfold.",
        ANATOMY,
        f"70B on four H100s, simulated (typical stack with CUDA graphs), everybody at once, each step on top of those "
        f"before; in brackets what limited it. {told}. KV bytes a token ÷ {cache:.0f}.",
        verdict,
    )


def b2(crowd: Mapping[int, Trace], prefixes: Mapping[str, Trace]) -> Claim:
    """More KV set aside for each request; and a cache of prefixes beside.

    Args:
        crowd: by tokens set aside; 0 = on demand. Of the first and the last, the fastest of several runs.
        prefixes: "on" and "off".
    """
    base, most = crowd[0], crowd[max(crowd)]
    fewer, slower = most.mean_running / base.mean_running, most.tokens_per_s / base.tokens_per_s
    told = ", ".join(
        f"{f'{n} tokens each' if n else 'on demand'}: {trace.mean_running:.1f} running, {number(trace.tokens_per_s)} "
        f"tokens/s"
        for n, trace in crowd.items()
    )
    seats = {name: trace.mean_running for name, trace in prefixes.items()}
    beside = (
        "A cache of prefixes is not such a case: it lies in blocks that nobody holds, and gives way."
        if abs(seats["on"] / seats["off"] - 1) < 1 - FEWER
        else "Here the cache of prefixes changed the number of seats as well."
    )
    if fewer < FEWER and slower < SLOWER:
        verdict = (
            "holds only when requests wait for room: then what one of them holds idle is another one's seat, and the "
            "machine writes fewer tokens in the same time. On an empty server the same reservation costs nothing. "
            f"{beside}"
        )
    elif fewer < FEWER:
        verdict = (
            "not shown: fewer ran at once, and this machine was not clearly slower: it was past its knee, or the run "
            "too short."
        )
    else:
        verdict = "not shown: the pool had room for everybody in each run."
    return Claim(
        "B2",
        "More KV per request means fewer requests at once, so a cache can make a server slower.",
        DECOMPOSING,
        f"the same requests and pool ({base.num_blocks} blocks), ever more set aside for each: {told}. (The first "
        f"and the last: best of {traffic.TURNS}, by turns.) Prefixes kept, and not, "
        f"when no prompt repeats: {seats['on']:.1f} and {seats['off']:.1f} running.",
        verdict,
    )


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
        verdict = "not shown: this lab has room for one length only."
    elif abs(power - QUADRATIC) < abs(power - LINEAR):
        verdict = "holds in these runs."
    else:
        verdict = (
            f"wrong: it is linear, a key and a value for each token; four times the text is four times the cache, not "
            f"sixteen. "
            f"Here KV grew as length to the power {power:.2f}. What does grow with the square is the work of "
            f"attention in "
            "prefill (and its score matrix, where a kernel writes it out), and all that decoding reads from the first "
            "token to the last."
        )
    return Claim(
        "D8", "KV memory grows with the square of the length.", TECHNIQUES, f"one request at a time: {told}.", verdict
    )


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
        verdict = "not shown: the requests were as long as what was set aside for them."
    elif all(abs(share - D12_SAVED) < NEAR for share in found.values()):
        verdict = "holds here, under each of these limits."
    else:
        verdict = (
            "holds only when requests are as much shorter than the reservation as theirs were: it saves 1 − tokens in "
            "use / "
            "tokens reserved, less half a block each. And memory does not fall: the pool is taken when the server "
            "starts. What "
            "falls is what a request holds of it, so that more of them run. (The PagedAttention paper found 20 to 38% "
            "of "
            "reserved KV in use in the systems before it.)"
        )
    return Claim(
        "D12",
        "Paging cut KV memory by 60%.",
        TECHNIQUES,
        f"requests that end at {mean:.0f} tokens on average, places held over all steps: {told}. Of the places that "
        f"paging "
        f"held, {some['on_demand'].filled_share:.0%} kept a token; of those reserved, "
        f"{some['max_len'].filled_share:.0%}.",
        verdict,
    )


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
        price = "What it costs did not show here: this model found the needle as well, or as badly, without a window."
    elif after < bets.SOME:
        price = "And it is not free: what has left the window is forgotten, here down to the needle's last digit."
    else:
        price = "And it is not free: part of what has left the window is forgotten."
    if back <= 0:
        verdict = "not shown: no block came back in this run."
    else:
        verdict = (
            f"holds only when requests are about {even:,.0f} tokens long: it frees 1 − window / length of a request's "
            f"KV, nothing of a shorter one, and nothing of the weights. {price}"
        )
    return Claim(
        "D14",
        "A sliding window of 2048 tokens frees 70% of memory.",
        TECHNIQUES,
        f"share of a request's KV that a window of {D14_WINDOW} frees: {told}. On the engine, a window of {window} and "
        f"{tokens} tokens: {back} blocks given back, {held} held. A passage said {far} tokens ago, tokens of it "
        f"foreseen: "
        f"{whole[far].share:.0%} with everything in sight, {cut[far].share:.0%} with the window and {traffic.SINKS} "
        f"sinks.",
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

"""Who comes, and to what pool: requests by the step, and the engine fields under which each question is asked."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from course.lab.lab import Lab
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import document
from course.lessons.lesson_06.shapes import Shape
from course.lessons.lesson_07.needle import FIRST_TIME, Found, haystacks, look_for, spans
from course.lessons.lesson_07.trace import Arrival, Trace, record
from minillm import Engine
from minillm.core.block_pool import blocks_for

WINDOW_LEN = 256
"""max_model_len of the small traces: what a request may grow to, and what `max_len` sets aside for it."""
ROOMY_POOL, SMALL_POOL, MEAN_POOL, TIGHT_POOL = 96, 48, 32, 24
"""Blocks of the small traces: plenty; enough for all eight on demand; for most; for too few of them."""
BLOCK = 16
CHAT_TOKENS, CHAT_TOKENS_SHORT = 1500, 400
"""Of the chats whose slots are counted: prompt and answer."""
ANSWER = 16
"""Tokens of their answers: long enough that none finishes before the last one has arrived."""
POOL_CHATS = 4.6
"""Chats that the pool of that question has room for: the rest of the last one is of no use."""
CROWD_POOL, CROWD = 96, 16
"""Blocks, and requests, of the question how many slots a reservation leaves."""
RESERVATIONS, RESERVATIONS_SHORT = (128, 256, 512, 1024), (128, 512)
"""max_model_len: under `max_len` every request sets so many tokens aside."""
LENGTHS_ALONE, LENGTHS_ALONE_SHORT = (128, 256, 512, 1024), (64, 256)
SINKS = 4
"""Tokens at the beginning that stay in sight, beside a window."""
WINDOW, DISTANCES, GROWS_TO = 256, (32, 560), 900
WINDOW_SHORT, DISTANCES_SHORT, GROWS_TO_SHORT = 128, (32, 192), 300
"""The window that is tried; the nearest and the farthest needle, tokens back; how long a request grows beside it."""
BESIDE = 8
"""Tokens: two needles lie so far on either side of the place where the window lets go of them."""
TURNS = 3
"""Runs of each of two settings whose speeds are compared, by turns: seconds are noisy."""


def engine(lab: Lab, **fields: Any) -> Engine:
    """An engine of your own that waits for each step before the next: what a trace shows is then all there is."""
    return lab.engine(**{"async_scheduling": False, "max_num_seqs": 32, **fields})


def play(lab: Lab, arrivals: Sequence[Arrival], name: str = "", **fields: Any) -> Trace:
    """A trace of these requests on a fresh pool.

    Args:
        fields: EngineConfig fields that differ from the lab's.
    """
    with lab.alone():
        return record(engine(lab, **fields), arrivals, name)


# ---------------------------------------------------------------- eight people, ever less room

LENGTHS = (40, 64, 30, 80, 100, 48, 72, 56)
"""Tokens of answers: longer than most questions, so that every request grows."""


def cast(lab: Lab) -> list[Arrival]:
    """Eight requests: half of them ask about one page of the handbook, half bring a question of their own."""
    encode = engine_tokenizer(lab)
    page = f"Answer from this handbook. {MANUAL[0]}"
    asked = [f"{page}\n\nQuestion: {question}" for question in MANUAL_QUESTIONS[:4]]
    own = [f"{question} {MANUAL[i][:160]}" for i, question in enumerate(CHAT_QUESTIONS[:4], start=2)]
    texts = [text for pair in zip(asked, own) for text in pair]
    share = 1.0 if lab.scale == 1 else 0.5
    return [
        Arrival(round(3 * share * i), tuple(encode(text)), max(4, round(length * share)))
        for i, (text, length) in enumerate(zip(texts, LENGTHS))
    ]


def small(**fields: Any) -> dict[str, Any]:
    """Engine fields of the small traces."""
    return {"max_model_len": WINDOW_LEN, "num_kv_blocks": SMALL_POOL, "max_num_batched_tokens": 128, **fields}


def reservations(lab: Lab) -> dict[str, Trace]:
    """The same eight, the same pool: all that a request may grow to set aside on arrival, or block by block."""
    arrivals = cast(lab)
    return {way: play(lab, arrivals, way, **small(kv_reservation=way)) for way in ("max_len", "on_demand")}


def limits(lab: Lab, on_demand: Trace) -> dict[int, dict[str, Trace]]:
    """The same eight, everything set aside under two context limits, in a pool with room for all requests.

    Args:
        on_demand: their trace with room for all requests. What it holds does not depend on the limit.
    """
    arrivals, found = cast(lab), {}
    for limit in (WINDOW_LEN, 2 * WINDOW_LEN):
        fields = small(kv_reservation="max_len", max_model_len=limit, num_kv_blocks=len(arrivals) * limit // BLOCK)
        found[limit] = {"max_len": play(lab, arrivals, "max_len", **fields), "on_demand": on_demand}
    return found


def thrash(lab: Lab, *known: Trace) -> dict[str, dict[int, Trace]]:
    """By what becomes of the evicted: a trace for each pool, ever smaller; two more than `known`.

    Args:
        known: traces of the larger pools, with preemption="recompute". Where nothing is evicted, swap is the same.
    """
    recompute = {trace.num_blocks: trace for trace in known}
    recompute |= {n: eight(lab, n) for n in (MEAN_POOL, TIGHT_POOL)}
    swap = {n: eight(lab, n, "swap") if trace.evictions else trace for n, trace in recompute.items()}
    return {"recompute": recompute, "swap": swap}


def eight(lab: Lab, pool: int, way: str = "recompute") -> Trace:
    """The eight in a pool of so many blocks; `way` says what becomes of those who are evicted, if any are."""
    return play(lab, cast(lab), f"{way}, {pool} blocks", **small(num_kv_blocks=pool, preemption=way))


# ---------------------------------------------------------------- how many chats fit


def chat_tokens(lab: Lab) -> int:
    """CHAT_TOKENS, or what the lab's context window holds."""
    return min(CHAT_TOKENS if lab.scale == 1 else CHAT_TOKENS_SHORT, lab.config().max_model_len - 1)


def slots_gb(lab: Lab) -> float:
    """The pool of that question, with two digits: room for POOL_CHATS chats, whatever the lab's model."""
    return float(f"{POOL_CHATS * chat_tokens(lab) * Shape.of_lab(lab).kv_bytes_per_token / 1e9:.2g}")


def chats(lab: Lab, count: int, tokens: int, answer: int = ANSWER) -> list[Arrival]:
    """`count` chats at once, no two of which share anything; each keeps exactly so many tokens in the end."""
    encode = engine_tokenizer(lab)
    arrivals = []
    for i in range(count):
        text = f"{i}. {document(random.Random(f'chat-{i}'), tokens // 40 + 2)}"
        arrivals.append(Arrival(0, tuple(encode(text)[: tokens + 1 - answer]), answer))
    return arrivals


def filling(lab: Lab, gb: float | None = None, tokens: int | None = None, more: int = 1, **fields: Any) -> Trace:
    """As many long chats as ought to fit into `gb` of KV, and some more, all at once.

    A chat begins when blocks are free for its whole prompt, as in vLLM; so a running request stays.
    """
    gb, tokens = gb or slots_gb(lab), tokens or chat_tokens(lab)
    with lab.alone():
        own = engine(
            lab, kv_cache_memory_gb=gb, num_kv_blocks=None, scheduler_reserve_full_isl=True,
            enable_prefix_caching=False, max_num_batched_tokens=2048, **fields,
        )  # fmt: skip
        fit = own.runner.num_kv_blocks // blocks_for(tokens, own.config.block_size)
        return record(own, chats(lab, fit + more, tokens), f"{gb} GB")


# ---------------------------------------------------------------- more KV for each, fewer slots


def crowded(lab: Lab) -> dict[int, Trace]:
    """By tokens that each request sets aside: the same short requests, the same pool. 0 = none, block by block.

    The first and the last are compared by their seconds: each is played TURNS times, by turns, and the fastest is kept.
    """
    arrivals = chats(lab, CROWD if lab.scale == 1 else CROWD // 2, 64, answer=24)
    longest = lab.config().max_model_len
    fields = {"num_kv_blocks": CROWD_POOL, "enable_prefix_caching": False, "max_num_batched_tokens": 512}
    tried = RESERVATIONS if lab.scale == 1 else RESERVATIONS_SHORT

    def trace(tokens: int) -> Trace:
        if not tokens:
            return play(lab, arrivals, "on demand", **fields)
        return play(lab, arrivals, f"{tokens} each", max_model_len=tokens, kv_reservation="max_len", **fields)

    traces = {tokens: trace(tokens) for tokens in (0, *(each for each in tried if each <= longest))}
    for _ in range(TURNS - 1):
        for tokens in (0, max(traces)):
            traces[tokens] = min(traces[tokens], trace(tokens), key=lambda each: each.seconds)
    return traces


def with_and_without_prefixes(lab: Lab) -> dict[str, Trace]:
    """A tight pool, prompts that share nothing: does a prefix cache take slots away?"""
    arrivals = chats(lab, CROWD // 2, 64, answer=24)
    fields = {"num_kv_blocks": CROWD_POOL // 6, "max_num_batched_tokens": 512}
    return {
        name: play(lab, arrivals, name, enable_prefix_caching=on, **fields)
        for name, on in (("on", True), ("off", False))
    }


# ---------------------------------------------------------------- lengths and windows


def lengths(lab: Lab) -> dict[int, Trace]:
    """One request of each length, alone."""
    tried = LENGTHS_ALONE if lab.scale == 1 else LENGTHS_ALONE_SHORT
    return {each: play(lab, chats(lab, 1, each, answer=2), str(each)) for each in tried}


def probe(lab: Lab) -> tuple[int, tuple[int, ...]]:
    """The window that is tried, and how far back needles lie: near, just inside, just outside, far."""
    window, (near, far) = (WINDOW, DISTANCES) if lab.scale == 1 else (WINDOW_SHORT, DISTANCES_SHORT)
    shortest, longest = spans(lab)
    inside, outside = window - longest - BESIDE, window - shortest + BESIDE
    return window, (near, *(each for each in (inside, outside) if near < each < far), far)


def windows(lab: Lab) -> dict[str, dict[str, Any]]:
    """Engine fields: everything in sight, a window, and a window with sinks."""
    window, _ = probe(lab)
    return {
        "everything in sight": {},
        f"window of {window}": {"sliding_window": window},
        f"window of {window}, {SINKS} sinks": {"sliding_window": window, "attention_sinks": SINKS},
    }


def growing(lab: Lab, **window: Any) -> Trace:
    """One request that grows far beyond a window. It is read in small pieces, so that the pool can be watched."""
    tokens = GROWS_TO if lab.scale == 1 else GROWS_TO_SHORT
    fields = {"long_prefill_token_threshold": 32, "enable_prefix_caching": False}
    return play(lab, chats(lab, 1, tokens), **fields, **window)


def growths(lab: Lab) -> dict[str, Trace]:
    """The same request under each of `windows`."""
    return {name: growing(lab, **fields) for name, fields in windows(lab).items()}


def looking(lab: Lab) -> dict[str, dict[int, Found]]:
    """Needles at all distances, and one that was never heard, under each of `windows`."""
    stacks = haystacks(lab, (FIRST_TIME, *probe(lab)[1]))
    with lab.alone():
        return {name: look_for(engine(lab, **fields), stacks) for name, fields in windows(lab).items()}


def with_sinks(grown: Mapping[str, Trace]) -> Trace:
    """The last of `growths`."""
    return list(grown.values())[-1]


def engine_tokenizer(lab: Lab) -> Any:
    """From text to token ids."""
    return lab.model.tokenizer.encode

"""Causal attention over a paged KV cache, by block tables, with grouped heads."""

import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from course.grading.arrays import alike, array, within
from course.grading.tools import Answer, Mistake, compare

Spans = Sequence[Sequence[tuple[int, int]]]
"""The (new tokens, context) of each request, step by step."""
TOLERANCE = 1e-4
"""Float32 is good enough."""


@dataclass(frozen=True)
class AttentionStep:
    """What paged_attention is called with, in this order. Float32; whole numbers int64."""

    query: np.ndarray
    """[T, n_heads, d]"""
    key_cache: np.ndarray
    """[num_blocks, block_size, n_kv_heads, d]"""
    value_cache: np.ndarray
    block_tables: np.ndarray
    """[B, max_blocks]; behind the blocks that a request needs stands one that was never written"""
    context_lens: np.ndarray
    """[B]"""
    query_lens: np.ndarray
    """[B]"""

    def arguments(self) -> tuple[np.ndarray, ...]:
        return tuple(each.copy() for each in astuple(self))

    def __str__(self) -> str:
        lens = list(zip(self.query_lens.tolist(), self.context_lens.tolist()))
        heads, kv_heads = self.query.shape[1], self.key_cache.shape[2]
        size = self.key_cache.shape[1]
        return f"(new tokens, context) {lens}, {heads} heads over {kv_heads} of keys, blocks of {size}"


@dataclass(frozen=True)
class WrongWay:
    """How attention is computed; the defaults are right, every other value is a usual mistake."""

    kv_head: Callable[[int, int, int], int] = lambda head, heads, kv_heads: head // (heads // kv_heads)
    sees: Callable[[int, int, int], int] = lambda i, new, context: context - new + i + 1
    """(number of the new token, new tokens, context) -> keys it sees"""
    scale: Callable[[int], float] = lambda d: d**-0.5
    slots: Callable[[np.ndarray, np.ndarray, int], np.ndarray] = lambda table, positions, size: (
        table[positions // size] * size + positions % size
    )
    """(block table, positions, block size) -> where they are in the flat cache"""
    table: Callable[[np.ndarray, int], np.ndarray] = lambda tables, b: tables[b]

    def __call__(self, *arguments: np.ndarray) -> np.ndarray:
        step = AttentionStep(*arguments)
        (_, heads, d), (_, size, kv_heads, _) = step.query.shape, step.key_cache.shape
        keys, values = (
            cache.reshape(-1, kv_heads, d).astype(np.float64) for cache in (step.key_cache, step.value_cache)
        )
        output, row = np.zeros(step.query.shape), 0
        for b, (context, new) in enumerate(zip(step.context_lens.tolist(), step.query_lens.tolist())):
            table = self.table(step.block_tables, b)
            for i in range(new):
                slots = self.slots(table, np.arange(self.sees(i, new, context)), size)
                for head in range(heads):
                    kv_head = self.kv_head(head, heads, kv_heads)
                    scores = keys[slots, kv_head] @ step.query[row, head] * self.scale(d)
                    weights = np.exp(scores - scores.max())
                    output[row, head] = weights / weights.sum() @ values[slots, kv_head]
                row += 1
        return output


right = WrongWay()


def full(count: int, size: int) -> int:
    """Up to the end of the last block."""
    return -(-count // size) * size


def blockwise(*arguments: np.ndarray) -> np.ndarray:
    """All slots of the blocks that are begun."""
    size = arguments[1].shape[1]
    return WrongWay(sees=lambda i, new, context: full(context - new + i + 1, size))(*arguments)


SLIPS: dict[str, Callable[..., np.ndarray]] = {
    "no_causal_mask": WrongWay(sees=lambda i, new, context: context),
    "mask_without_context": WrongWay(sees=lambda i, new, context: i + 1),
    "mask_excludes_own_token": WrongWay(sees=lambda i, new, context: context - new + i),
    "added_new_tokens_to_context": WrongWay(sees=lambda i, new, context: context + i + 1),
    "read_whole_last_block": blockwise,
    "heads_grouped_by_remainder": WrongWay(kv_head=lambda head, heads, kv_heads: head % kv_heads),
    "scores_not_scaled": WrongWay(scale=lambda d: 1.0),
    "scores_divided_by_d": WrongWay(scale=lambda d: 1 / d),
    "blocks_in_order_of_id": WrongWay(table=lambda tables, b: np.sort(tables[b])),
    "blocks_taken_as_consecutive": WrongWay(slots=lambda table, positions, size: table[0] * size + positions),
    "ignored_block_table": WrongWay(slots=lambda table, positions, size: positions),
    "used_first_block_table": WrongWay(table=lambda tables, b: tables[0]),
}


def some_step(
    rng: random.Random,
    spans: Sequence[tuple[int, int]],
    heads: tuple[int, int] = (2, 2),
    d: int = 4,
    size: int = 4,
    garbage: float | None = None,
) -> AttentionStep:
    """A step over a cache whose blocks are handed out in any order.

    Args:
        spans: (new tokens, context) of each request.
        heads: of queries, and of keys and values.
        garbage: in every slot that was never written; None = random numbers.
    """
    draws = np.random.default_rng(rng.getrandbits(48))
    needed = [-(-context // size) for _, context in spans]
    blocks = sum(needed) + 3
    ids = draws.permutation(blocks)
    longest = max(needed) + 1
    tables = np.full((len(spans), longest), ids[-1])
    caches = [draws.normal(size=(blocks * size, heads[1], d)) for _ in range(2)]
    written = np.zeros(blocks * size, dtype=bool)
    begin = 0
    for b, (_, context) in enumerate(spans):
        tables[b, : needed[b]] = ids[begin : begin + needed[b]]
        begin += needed[b]
        positions = np.arange(context)
        written[tables[b, positions // size] * size + positions % size] = True
    for cache in caches:
        if garbage is not None:
            cache[~written] = garbage
    query = draws.normal(size=(sum(new for new, _ in spans), heads[0], d)) * 2
    return AttentionStep(
        query.astype(np.float32),
        *(cache.reshape(blocks, size, heads[1], d).astype(np.float32) for cache in caches),
        tables.astype(np.int64),
        np.array([context for _, context in spans]),
        np.array([new for new, _ in spans]),
    )


def asked(answer: Answer, step: AttentionStep) -> np.ndarray:
    return array(answer.paged_attention(*step.arguments()), "paged_attention(...)", step.query.shape)


def judge(answer: Answer, steps: Sequence[AttentionStep], tip: str | None = None) -> None:
    """Hold the answer to attention computed the slow way.

    Args:
        tip: names what usually makes NaN of these.
    """
    cases = [(astuple(step), asked(answer, step)) for step in steps]

    def otherwise(*_: object) -> str | None:
        is_rounded = all(alike(found, right(*case), 0.02) for case, found in cases)
        return "computed_in_16_bits" if is_rounded else None

    about = {"agree": within(TOLERANCE), "describe": lambda *step: f"paged_attention of {AttentionStep(*step)}"}
    compare("paged_attention", cases, right, SLIPS, otherwise=otherwise, nan=tip, **about)


def gathers(answer: Answer, rng: random.Random) -> None:
    for size, context in ((4, 11), (4, 8), (4, 1), (3, 9), (16, 5), (1, 6)):
        step = some_step(rng, [(1, context)], (2, 2), d=3, size=size)
        table = step.block_tables[0]
        what = f"gather of {context} tokens in blocks of {size}, table {table.tolist()},"
        found = array(answer.gather(step.key_cache, table, context), what, (context, 2, 3))
        for position in range(context):
            wanted = step.key_cache[table[position // size], position % size]
            if not alike(found[position], wanted.astype(np.float64), 1e-6):
                flat = step.key_cache.reshape(-1, 2, 3)
                where = [i for i, entry in enumerate(flat) if alike(found[position], entry.astype(np.float64), 1e-6)]
                came = f"that of block {where[0] // size}, place {where[0] % size}" if where else "something else"
                block, offset = table[position // size], position % size
                about = {"what": what, "position": position, "block": block, "offset": offset, "came": came}
                raise Mistake("wrong_slot", **about)


def steps(answer: Answer, rng: random.Random, batches: Spans, tip: str = "", times: float = 1, **more: Any) -> None:
    """
    Args:
        times: how large the scores are.
        more: of `some_step`.
    """
    asked = [some_step(rng, spans, **{"heads": (4, 2), **more}) for spans in batches]
    for step in asked:
        step.query[:] *= times
    judge(answer, asked, tip)


def groups(answer: Answer, rng: random.Random) -> None:
    heads = ((4, 2), (6, 2), (9, 3), (3, 1), (8, 2))
    judge(answer, [some_step(rng, [(1, 7 + i)], each) for i, each in enumerate(heads)])


def mixed(answer: Answer, rng: random.Random) -> None:
    batches = (((1, 5), (1, 13), (1, 4)), ((1, 9), (4, 4), (3, 17), (1, 1)), ((6, 14), (1, 8), (2, 3)))
    asked = [some_step(rng, spans, (4, 2), size=size) for spans, size in zip(batches, (4, 4, 5))]
    # Two requests share a full block: the beginning of their prompts.
    shared = some_step(rng, ((1, 6), (2, 7)), (4, 2))
    shared.block_tables[1, 0] = shared.block_tables[0, 0]
    judge(answer, [*asked, shared])
    # Tables and caches of another step must not be remembered.
    judge(answer, [some_step(rng, batches[0], (4, 2))])

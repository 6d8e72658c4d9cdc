"""Traces, needles and scores of lesson 07, made by hand: no engine."""

from math import log1p

from course.lab import model_shape
from course.lab.pool_trace import DECODE, DONE, PREFILL, QUEUE, PoolFrame, PoolTrace, TracedOutcome
from course.lessons.lesson_07.run import Account
from course.lessons.lesson_07b.run import FIRST_TIME, Found, Loss
from course.measure.scoring import TextScore


def frame(
    tables: dict[int, tuple[int, ...]], computed: dict[int, int], states: tuple[str, ...], **more: int
) -> PoolFrame:
    counts = {"num_tokens": 4, "num_again": 0, **more}
    return PoolFrame(states, tables, computed, frozenset(), seconds=0.5, **counts)


def trace_of(
    frames: list[PoolFrame], outcomes: tuple[TracedOutcome, ...] = (), num_blocks: int = 4, **fields: int
) -> PoolTrace:
    return PoolTrace("made", 16, num_blocks, 1000, frames, outcomes, **fields)


def outcome(output: tuple[int, ...] = (1, 2), *, finished: bool = True, first: int = 0, last: int = 1) -> TracedOutcome:
    return TracedOutcome(20, output, 0, finished, first, last)


MADE = trace_of(
    [
        frame({0: (0, 1)}, {0: 20}, (PREFILL, QUEUE)),
        frame({0: (0, 1), 1: (0, 2)}, {0: 21, 1: 17}, (DECODE, DECODE), num_again=1),
        frame({1: (0, 2)}, {1: 18}, (DONE, DECODE)),
    ],
    (outcome(), outcome((3,), first=1, last=2)),
)


def large() -> Account:
    return Account(model_shape.LLAMA_70B, room=283e9)


def found(near: float, far: float, never: float = 0.2) -> dict[int, Found]:
    counts = {FIRST_TIME: never, 32: near, 192: far}
    return {distance: Found(distance, round(100 * share), 100) for distance, share in counts.items()}


def loss(rise: float = 0.0, kl: float = 0.001, agreed: int = 98) -> Loss:
    return Loss("KV in int8", TextScore(100, 200.0, 200.0 + 100 * log1p(rise), 100 * kl, agreed), 0.52)

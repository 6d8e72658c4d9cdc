"""What the predictions of lesson 07 are scored by."""

from collections.abc import Mapping

from course.lab.predict import Outcome
from course.lab.style import size
from course.lessons.lesson_07.needle import FIRST_TIME, Found
from course.lessons.lesson_07.trace import Trace

FORESEEN = ("nearly all of it", "some of it", "no more than of a passage it has never seen")
ALL, SOME = 0.8, 0.25
"""Of the way from never heard to heard a moment ago."""


def slots(trace: Trace, tokens: int) -> Outcome:
    """How many chats ran at once, of more than had room."""
    blocks = -(-tokens // trace.block_size)
    return Outcome(
        float(trace.most_running),
        f"{trace.most_running} of {len(trace.outcomes)} chats ran at once. A block is {size(trace.block_bytes)} and "
        f"the pool has "
        f"{trace.num_blocks}; a chat takes {blocks} of them, {size(blocks * trace.block_bytes)}",
    )


def done_twice(trace: Trace) -> Outcome:
    """Share of the computed tokens that had been computed before."""
    share = trace.again / trace.tokens
    return Outcome(
        100 * share,
        f"{trace.again} of {trace.tokens} tokens computed had been computed before ({share:.0%}), after "
        f"{trace.evictions} evictions",
    )


def recalled(found: Mapping[int, Found], far: int) -> float:
    """How much of a needle far back is foreseen: 0 = as if never heard, 1 = as well as one just heard."""
    nothing, near = found[FIRST_TIME].share, found[min(d for d in found if d != FIRST_TIME)].share
    return (found[far].share - nothing) / max(near - nothing, 1e-9)


def needle(found: Mapping[str, Mapping[int, Found]]) -> Outcome:
    """The needle that is farthest back, with a window that it has left.

    Args:
        found: by name of the configuration: all in sight first, the window with sinks last.
    """
    whole, *_, windowed = found.values()
    far = max(windowed)
    share = recalled({**whole, far: windowed[far]}, far)
    answer = FORESEEN[0] if share >= ALL else FORESEEN[1] if share >= SOME else FORESEEN[2]
    return Outcome(
        answer,
        f"{far} tokens back, {windowed[far].share:.0%} of its tokens are predicted with the window and "
        f"{whole[far].share:.0%} without it; {whole[FIRST_TIME].share:.0%} of one it has never seen: {answer}",
    )

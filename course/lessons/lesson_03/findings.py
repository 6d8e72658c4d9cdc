"""What the runs of lesson 03 showed, in words."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.run import Run
from course.lessons.lesson_03.attention import Point
from course.lessons.lesson_03.chunks import TIE, trade
from course.lessons.lesson_03.measured import Ladder, saving

STRAIGHT = (0.9, 1.15)
"""Powers between these are called straight growth."""


def ladder(found: Ladder) -> Finding:
    """How TTFT grew over the two lengths of the bet, and at the short end."""
    shorter, longer = found.four_apart
    power = found.exponent(shorter, longer)
    first, second = sorted(found.best)[:2]
    outcome = "flat" if power < STRAIGHT[0] else "straight" if power <= STRAIGHT[1] else "bent"
    ends = {"first": first, "second": second, "start": found.exponent(first, second)}
    return tell(
        "03", "ladder", outcome, shorter=shorter, longer=longer, power=power, ratio=found.ratio(shorter, longer), **ends
    )


def square(points: Sequence[Point]) -> Finding:
    """Textbook against fused: memory, and time."""
    short, long = points[0], points[-1]
    outcome = "faster" if long.speedup > 1.1 else "memory"
    return tell(
        "03", "square", outcome, tokens=long.tokens, memory=1 / long.memory, long=long.speedup, short=short.speedup
    )


def request(both: Mapping[str, Ladder]) -> Finding:
    """What fused attention takes off a request's TTFT, by length."""
    lengths = sorted(next(iter(both.values())).best)
    ends = {"short": lengths[0], "long": lengths[-1]}
    return tell(
        "03", "request", "here", saved_short=saving(both, lengths[0]), saved_long=saving(both, lengths[-1]), **ends
    )


def chunks(swept: Mapping[int, Run]) -> Finding:
    """Who gained from small chunks, and who paid."""
    small, whole = trade(swept[min(swept)]), trade(swept[max(swept)])
    ratio = small.ttft / whole.ttft
    outcome = "same" if abs(ratio - 1) <= TIE else "longer" if ratio > 1 else "shorter"
    gaps = {"gap": small.worst_gap, "whole_gap": whole.worst_gap}
    return tell("03", "chunks", outcome, chunk=min(swept), steps=small.steps, ttft=small.ttft, whole=whole.ttft, **gaps)

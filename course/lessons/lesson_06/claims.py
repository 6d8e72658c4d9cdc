"""The claim of lesson 06."""

from collections.abc import Callable, Sequence

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lessons.lesson_06 import steps, traffic
from course.lessons.lesson_06.shapes import Shape, three
from course.lessons.lesson_06.steps import Dot

GROWS = 1.02
"""Less than that is no growth that could be told from noise."""


def a4(dots: Sequence[Dot], shapes: Sequence[Shape]) -> Claim:
    """Is it the KV cache that decoding reads most?

    Args:
        dots: steps of one batch, by length of context; the shortest first.
        shapes: models whose crossover to state.
    """
    short, long = dots[0], dots[-1]
    shares = [dot.kv_bytes / dot.bytes for dot in dots]
    with_room = [shape for shape in shapes if (shape.room_tokens() or 0) > shape.crossover_tokens]
    if long.itl < GROWS * short.itl or short.is_restless or long.is_restless:
        verdict = "not_shown"
    elif min(shares) >= 0.5:
        verdict = "holds"
    else:
        verdict = "wrong" if max(shares) < 0.5 and not with_room else "only_when"
    return conclude(
        "A4",
        verdict,
        short=short,
        long=long,
        in_bytes=", ".join(f"{share:.0%} at a context of {dot.context:.0f}" for dot, share in zip(dots, shares)),
        most_added=max(1 - short.itl / long.itl, 0),
        borders="; ".join(f"{shape.name} ({shape.kind}) {shape.crossover_tokens:,.0f}" for shape in shapes),
        above=say("A4.both_sides" if max(shares) >= 0.5 else "A4.by_shape"),
    )


def measure(lab: Lab) -> Claim:
    """A small experiment: one batch, short and longer contexts."""
    runs = [lab.run(each, **traffic.room(each)) for each in steps.longer_and_longer(lab)]
    return a4(steps.dots(lab, runs), list(three(lab).values()))


MEASURE: dict[str, Callable[[Lab], Claim]] = {"A4": measure}

"""The claim of lesson 06."""

from collections.abc import Callable, Sequence

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_06 import steps, traffic
from course.lab.lesson_06.shapes import Shape, three
from course.lab.lesson_06.steps import Dot

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
    in_bytes = ", ".join(f"{share:.0%} at a context of {dot.context:.0f}" for dot, share in zip(dots, shares))
    added = 1 - short.itl / long.itl
    borders = "; ".join(f"{shape.name} ({shape.kind}) {shape.crossover_tokens:,.0f}" for shape in shapes)
    return Claim(
        "A4",
        say("A4.measured", short=short, in_bytes=in_bytes, long=long, most_added=max(added, 0), borders=borders),
        _verdict(dots, shapes, shares),
    )


def _verdict(dots: Sequence[Dot], shapes: Sequence[Shape], shares: Sequence[float]) -> str:
    if dots[-1].itl < GROWS * dots[0].itl or any(dot.is_restless for dot in (dots[0], dots[-1])):
        return say("A4.not_shown")
    if min(shares) >= 0.5:
        return say("A4.holds")
    with_room = [shape for shape in shapes if (shape.room_tokens() or 0) > shape.crossover_tokens]
    if max(shares) < 0.5 and not with_room:
        return say("A4.wrong")
    above = "Runs on both sides of it are above." if max(shares) >= 0.5 else "By their shapes: no run here got there."
    return say("A4.only_when", above=above)


def measure(lab: Lab) -> Claim:
    """A small experiment: one batch, short and longer contexts."""
    runs = [lab.run(each, **traffic.room(each)) for each in steps.longer_and_longer(lab)]
    return a4(steps.dots(lab, runs), list(three(lab).values()))


MEASURE: dict[str, Callable[[Lab], Claim]] = {"A4": measure}

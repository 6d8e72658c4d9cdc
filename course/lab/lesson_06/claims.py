"""The claim of lesson 06."""

from collections.abc import Callable, Sequence

from course.lab.claims import ANATOMY, Claim
from course.lab.lab import Lab
from course.lab.lesson_06 import steps, traffic
from course.lab.lesson_06.shapes import Shape, three
from course.lab.lesson_06.steps import Dot
from course.lab.style import seconds

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
        "In decode, what dominates is reading the KV cache.",
        ANATOMY,
        f"batch {short.batch}, share of KV in the bytes that a step reads: {in_bytes}. The step took "
        f"{seconds(short.itl)}, and {seconds(long.itl)} with the longest contexts: of that, {max(added, 0):.0%} came "
        f"with them. Tokens of context, of all requests together, at which KV is as much as the weights: {borders}.",
        _verdict(dots, shapes, shares),
    )


def _verdict(dots: Sequence[Dot], shapes: Sequence[Shape], shares: Sequence[float]) -> str:
    if dots[-1].itl < GROWS * dots[0].itl or any(dot.is_restless for dot in (dots[0], dots[-1])):
        return "not shown by these runs: longer contexts made no difference that stands out from this machine's noise."
    if min(shares) >= 0.5:
        return "holds in these runs: even the shortest contexts are more bytes than the weights."
    with_room = [shape for shape in shapes if (shape.room_tokens() or 0) > shape.crossover_tokens]
    if max(shares) < 0.5 and not with_room:
        return "wrong for these models: there is no room for contexts that are more bytes than the weights."
    above = "Runs on both sides of it are above." if max(shares) >= 0.5 else "By their shapes: no run here got there."
    return (
        "holds only when the contexts of all running requests together are longer than weights / KV per token. "
        f"{above} Below that, as for a lone short chat, a step reads mostly weights, and batching is what helps. "
        "Sharing keys and values among heads (GQA) moves the border far out."
    )


def measure(lab: Lab) -> Claim:
    """A small experiment: one batch, short and longer contexts."""
    runs = [lab.run(each, **traffic.room(each)) for each in steps.longer_and_longer(lab)]
    return a4(steps.dots(lab, runs), list(three(lab).values()))


MEASURE: dict[str, Callable[[Lab], Claim]] = {"A4": measure}

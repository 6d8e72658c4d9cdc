"""What happens to a prompt's cost when it grows? Measured and counted, as curves and as bars."""

from collections.abc import Mapping, Sequence

from course.lab.lesson_03.attention import FUSED, TEXTBOOK, Point
from course.lab.lesson_03.costs import attention_share, crossover
from course.lab.lesson_03.measured import Ladder
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import PHASE_COLOURS, number, seconds
from course.lab.svg import INK, SOFT, Picture, line, phase_fill, rect, text
from minillm.model.arithmetic import ModelFlops
from minillm.model.config import ModelConfig

TOKENS = Axis("prompt length, tokens", log=True)
LONGEST = 1 << 18
"""End of the charts that are counted."""
SKY = "#56B4E9"
"""Okabe-Ito sky blue: attention, the lighter part of prefill."""
BAR_LEFT, BAR_WIDTH, BAR_HEIGHT = 150.0, 430.0, 30.0


def draw_ladder(ladder: Ladder, own: Sequence[tuple[int, float]] = ()) -> Picture:
    """Measured TTFT against length, between straight growth and the square, both drawn from the first length on.

    Args:
        own: further measured points (tokens, seconds), of whoever holds the handle.
    """
    xs, ys = list(ladder.best), [1e3 * value for value in ladder.best.values()]
    middle = len(xs) // 2
    proportional = [ys[middle] * x / xs[middle] for x in xs]
    square = [ys[middle] * (x / xs[middle]) ** 2 for x in xs]
    curves = [Curve("measured TTFT", xs, ys), Curve("twice as long, twice the time", xs, proportional, style="dashes")]
    curves.append(Curve("twice as long, four times the time", xs, square, style="dashes"))
    if own:
        curves.append(Curve("yours", [x for x, _ in own], [1e3 * y for _, y in own], style="points"))
    told = ", ".join(f"{x} tokens {seconds(y / 1e3)}" for x, y in zip(xs, ys))
    mine = "".join(f"; yours: {x} tokens {seconds(y)}" for x, y in own)
    title = "How does the time to the first token grow with the prompt?"
    return draw_chart(title, curves, TOKENS, Axis("time to first token, ms", log=True), description=f"{told}{mine}.")


def draw_time_and_memory(points: Sequence[Point]) -> tuple[Picture, Picture]:
    """One layer's attention, textbook and fused: seconds, and peak memory."""
    xs = [point.tokens for point in points]
    times = [Curve(name, xs, [1e3 * point.seconds[name] for point in points]) for name in (TEXTBOOK, FUSED)]
    peaks = [Curve(name, xs, [point.peak[name] / 1e6 for point in points]) for name in (TEXTBOOK, FUSED)]
    last = points[-1]
    time = draw_chart(
        "How long does one layer's attention take?", times, TOKENS, Axis("ms a layer", log=True), height=230,
        description=f"{'; '.join(_told(p) for p in points)}.",
    )  # fmt: skip
    peak = draw_chart(
        "How much memory does it need for that?", peaks, TOKENS, Axis("peak, MB a layer", log=True), height=230,
        description=f"at {last.tokens} tokens: {TEXTBOOK} {last.peak[TEXTBOOK] / 1e6:.1f} MB, {FUSED} "
        f"{last.peak[FUSED] / 1e6:.1f} MB.",
    )  # fmt: skip
    return time, peak


def _told(point: Point) -> str:
    return f"{point.tokens} tokens: " + ", ".join(f"{name} {seconds(t)}" for name, t in point.seconds.items())


def draw_shares(shapes: Mapping[str, ModelConfig], tokens: int) -> Picture:
    """Attention's share of the FLOPs against length; the handle's length marked; the crossovers as rings."""
    xs = [2**i for i in range(6, LONGEST.bit_length())]
    curves = [
        Curve(name, xs, [100 * attention_share(shape, x) for x in xs], style="dashes") for name, shape in shapes.items()
    ]
    marks = [Mark(f"half: {crossover(shape):,.0f} tokens", x=crossover(shape), y=50) for shape in shapes.values()]
    marks.append(Mark(f"{tokens} tokens", x=tokens))
    found = "; ".join(
        f"{name}: {attention_share(shape, tokens):.1%} at {tokens} tokens, half at {crossover(shape):,.0f}"
        for name, shape in shapes.items()
    )
    axis = Axis("attention's share of the FLOPs, %", low=0, high=100)
    return draw_chart("When does attention become the larger part?", curves, TOKENS, axis, marks, description=found)


def draw_split(shapes: Mapping[str, ModelConfig], tokens: int) -> Picture:
    """A bar a model: matrices, then attention; what four times the length makes of it stands under it."""
    body, told = "", []
    for i, (name, shape) in enumerate(shapes.items()):
        flops, y = ModelFlops.of(shape), 22 + 84.0 * i
        share = attention_share(shape, tokens)
        linear = BAR_WIDTH * (1 - share)
        body += text(BAR_LEFT - 10, y + 20, name, size=13, text_anchor="end", font_weight="bold")
        body += rect(BAR_LEFT, y, linear, BAR_HEIGHT, fill=PHASE_COLOURS["prefill"])
        body += rect(BAR_LEFT + linear, y, BAR_WIDTH - linear, BAR_HEIGHT, fill=SKY, stroke=INK)
        body += text(BAR_LEFT, y - 5, "matrices", size=11, fill=SOFT)
        body += text(BAR_LEFT + BAR_WIDTH, y - 5, "attention", size=11, fill=SOFT, text_anchor="end")
        body += text(BAR_LEFT + BAR_WIDTH + 8, y + 20, f"{share:.1%} attention", size=12)
        total, ratio = flops.prefill(tokens), flops.prefill(4 * tokens) / flops.prefill(tokens)
        words = f"{number(total / 1e12)} TFLOP; four times the length takes {ratio:.1f} times as many"
        body += text(BAR_LEFT, y + BAR_HEIGHT + 15, words, size=12, fill=SOFT)
        told.append(
            f"{name}: {number(total / 1e12)} TFLOP, {share:.1%} attention, ×{ratio:.1f} at four times the length"
        )
    title = f"{tokens} tokens: where do the FLOPs go?"
    return Picture(title, body, 84.0 * len(shapes), description="; ".join(told))


def draw_saving(points: Mapping[int, Mapping[str, float]]) -> Picture:
    """TTFT with each kind of attention by prompt length: a pair of bars a length, as shares of the slower one."""
    body, told, pitch = "", [], 46.0
    for i, (tokens, ttft) in enumerate(points.items()):
        y = 8 + pitch * i
        longest = max(ttft.values())
        body += text(BAR_LEFT - 10, y + 20, f"{tokens} tokens", size=12, text_anchor="end")
        for j, name in enumerate((TEXTBOOK, FUSED)):
            look = {"fill": SOFT, "fill_opacity": 0.5} if j == 0 else {"fill": phase_fill("prefill")}
            width = BAR_WIDTH * ttft[name] / longest
            body += rect(BAR_LEFT, y + 17 * j, width, 14, **look)
            body += text(BAR_LEFT + width + 5, y + 17 * j + 12, f"{seconds(ttft[name])}  {name}", size=11)
        told.append(f"{tokens} tokens: {', '.join(f'{name} {seconds(value)}' for name, value in ttft.items())}")
    body += line(BAR_LEFT, 4, BAR_LEFT, pitch * len(points), stroke=SOFT)
    title = "What does fused attention save of the whole TTFT?"
    return Picture(title, body, pitch * len(points) + 6, description="; ".join(told))

"""The pictures of lesson 03: what a longer prompt costs, who pays when it is read in chunks."""

from collections.abc import Mapping, Sequence

from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_03.attention import FUSED, TEXTBOOK, Point
from course.lessons.lesson_03.chunks import Trade
from course.lessons.lesson_03.costs import attention_share, crossover, flops_ratio
from course.lessons.lesson_03.measured import Ladder
from minillm.model.config import ModelConfig

TOKENS = Axis("prompt length, tokens", log=True)
LONGEST = 1 << 18
"""End of the charts that are counted."""


def draw_ladder(ladder: Ladder, own: Sequence[tuple[int, float]] = ()) -> Picture:
    """Measured TTFT against length, between straight growth and the square, both drawn from the first length on.

    Args:
        own: further measured points (tokens, seconds), taken with the slider.
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
        "How long does one layer's attention take?", times, TOKENS, Axis("ms per layer", log=True), height=230,
        description=f"{'; '.join(_told(p) for p in points)}.",
    )  # fmt: skip
    peak = draw_chart(
        "How much memory does that need?", peaks, TOKENS, Axis("peak, MB per layer", log=True), height=230,
        description=f"at {last.tokens} tokens: {TEXTBOOK} {last.peak[TEXTBOOK] / 1e6:.1f} MB, {FUSED} "
        f"{last.peak[FUSED] / 1e6:.1f} MB.",
    )  # fmt: skip
    return time, peak


def _told(point: Point) -> str:
    return f"{point.tokens} tokens: " + ", ".join(f"{name} {seconds(t)}" for name, t in point.seconds.items())


def draw_shares(shapes: Mapping[str, ModelConfig], tokens: int) -> Picture:
    """Attention's share of the FLOPs against length; the slider's length marked; the crossovers as rings."""
    xs = [2**i for i in range(6, LONGEST.bit_length())]
    curves, marks = [], [Mark(f"{tokens} tokens", x=tokens)]
    for name, shape in shapes.items():
        told = f"{name}: {attention_share(shape, tokens):.1%} here; ×{flops_ratio(shape, tokens, 4 * tokens):.1f} FLOPs"
        told += " at four times the length"
        curves.append(Curve(told, xs, [100 * attention_share(shape, x) for x in xs], style="dashes"))
        marks.append(Mark(f"half: {crossover(shape):,.0f} tokens", x=crossover(shape), y=50))
    axis = Axis("attention's share of the FLOPs, %", low=0, high=100)
    return draw_chart("When does attention become the larger part?", curves, TOKENS, axis, marks)


def draw_saving(ladders: Mapping[str, Ladder]) -> Picture:
    """TTFT with each kind of attention, by prompt length."""
    curves = [
        Curve(name, list(ladder.best), [1e3 * ttft for ttft in ladder.best.values()])
        for name, ladder in ladders.items()
    ]
    told = "; ".join(
        f"{tokens} tokens: {', '.join(f'{name} {seconds(ladder.best[tokens])}' for name, ladder in ladders.items())}"
        for tokens in next(iter(ladders.values())).best
    )
    title = "What does fused attention save of the whole TTFT?"
    return draw_chart(title, curves, TOKENS, Axis("time to first token, ms", log=True), height=230, description=told)


def draw_trade(
    trades: Sequence[Trade], chosen: int | None = None, floor: Sequence[float] = (), where: str = ""
) -> Picture:
    """Both waits against the chunk size.

    Args:
        trades: in ascending order of chunk size.
        chosen: the slider's chunk size; it is ringed.
        floor: for each trade, seconds that reading the weights so often takes at least.
        where: which machine, as a part of the title.
    """
    xs = [trade.chunk for trade in trades]
    curves = [
        Curve("the long prompt's TTFT", xs, [1e3 * trade.ttft for trade in trades]),
        Curve("longest gap of the others", xs, [1e3 * trade.worst_gap for trade in trades]),
    ]
    if floor:
        curves.append(Curve("only reading the weights", xs, [1e3 * value for value in floor], style="dashes"))
    marks = [
        Mark(f"{'whole' if trade.whole else trade.chunk}: {seconds(value)}", x=trade.chunk, y=1e3 * value)
        for trade in trades
        if trade.chunk == chosen
        for value in (trade.ttft, trade.worst_gap)
    ]
    told = "; ".join(
        f"{'whole' if t.whole else f'chunks of {t.chunk}'} ({t.steps} steps): TTFT {seconds(t.ttft)}, longest gap "
        f"{seconds(t.worst_gap)}"
        for t in trades
    )
    title = f"{where}{trades[0].tokens} tokens in chunks: which requests wait?"
    x = Axis("chunk, prompt tokens per step", log=True)
    return draw_chart(title, curves, x, Axis("ms", log=True), marks, height=300, description=told)

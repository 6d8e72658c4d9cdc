"""The pictures of lesson 03: what a longer prompt costs, who pays when it is read in chunks, what a cut leaves."""

from collections.abc import Mapping, Sequence
from html import escape

from course.lab.display import Html
from course.lab.lesson_03.attention import FUSED, TEXTBOOK, Point
from course.lab.lesson_03.chunks import Trade
from course.lab.lesson_03.costs import attention_share, crossover
from course.lab.lesson_03.measured import Ladder
from course.lab.lesson_03.reading import CUTS, Question
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import ALARM, PHASE_COLOURS, number, seconds
from course.lab.svg import INK, SOFT, Picture, line, phase_fill, rect, text
from minillm.frontend.prompt_pruning import split_sentences
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


def draw_trade(
    trades: Sequence[Trade], chosen: int | None = None, floor: Sequence[float] = (), where: str = ""
) -> Picture:
    """Both waits against the chunk size.

    Args:
        trades: in ascending order of chunk size.
        chosen: the chunk size that the handle is at; it is ringed.
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
    title = f"{where}{trades[0].tokens} tokens in chunks: who waits?"
    x = Axis("chunk, prompt tokens a step", log=True)
    return draw_chart(title, curves, x, Axis("ms", log=True), marks, height=300, description=told)


def show_cut(question: Question, cut: str, keep: float) -> Html:
    """The whole text, with what one way of cutting drops struck out, and whether the answer is among it.

    Args:
        keep: share of the words that may stay.
    """
    left = set(split_sentences(CUTS[cut](question.text, question.question, keep)))
    sentences = split_sentences(question.text)
    kept = [sentence for sentence in sentences if sentence in left]
    words, before = sum(len(s.split()) for s in kept), len(question.text.split())
    survives = any(question.answer.lower() in sentence.lower() for sentence in kept)
    colour, verdict = (PHASE_COLOURS["decode"], "is still there") if survives else (ALARM, "is gone")
    head = f"{words} of {before} words kept. The answer, “{question.answer}”, {verdict}."
    body = " ".join(_sentence(sentence, sentence in left, question.answer) for sentence in sentences)
    html = (
        f'<div style="border-left:6px solid {colour};padding:4px 12px;max-width:820px;line-height:1.5">'
        f"<b>{escape(question.question)}</b><br>{escape(head)}<p style='margin:6px 0'>{body}</p></div>"
    )
    return Html(html, f"{question.question} {head} Left: {' '.join(kept)}")


def _sentence(sentence: str, kept: bool, answer: str) -> str:
    start = sentence.lower().find(answer.lower())
    written = escape(sentence)
    if start >= 0:
        found = sentence[start : start + len(answer)]
        written = f"{escape(sentence[:start])}<u><b>{escape(found)}</b></u>{escape(sentence[start + len(answer) :])}"
    return written if kept else f'<s style="opacity:0.45">{written}</s>'

"""Pictures of lesson 03, some with sliders: TTFT by length, the square of pairs, chunks, an envelope."""

from collections.abc import Mapping, Sequence

from course.lab import simulated_70b
from course.lab.display import Html, stack
from course.lab.explorer import Explorer, choices, slider
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, seconds, size
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, boxes, line, phase_fill, rect, tag, text
from course.lessons.lesson_03 import simulated
from course.lessons.lesson_03.run import (
    BIG,
    FUSED,
    OFFERED_CHUNKS,
    SMALL,
    TEXTBOOK,
    AttentionPoint,
    Ladder,
    Trade,
    attention_share,
    chunk_fields,
    chunk_sizes,
    crossover,
    device_kind,
    fields_for,
    flops_ratio,
    lab_shape,
    long_among_chats,
    one_prompt,
    score_bytes,
    shape_of,
    short_name,
    tile_bytes,
    trade,
    window,
)
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from minillm.model.config import ModelConfig

# ---------------------------------------------------------------- charts

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


def draw_time_and_memory(points: Sequence[AttentionPoint]) -> tuple[Picture, Picture]:
    """One layer's attention, textbook and fused: seconds, and peak memory."""
    xs = [point.tokens for point in points]
    times = [Curve(name, xs, [1e3 * point.seconds[name] for point in points]) for name in (TEXTBOOK, FUSED)]
    peaks = [Curve(name, xs, [point.peak[name] / 1e6 for point in points]) for name in (TEXTBOOK, FUSED)]
    last = points[-1]
    time = draw_chart(
        "How long does one layer's attention take?",
        times,
        TOKENS,
        Axis("ms per layer", log=True),
        height=230,
        description=f"{'; '.join(_told(p) for p in points)}.",
    )
    peak = draw_chart(
        "How much memory does that need?",
        peaks,
        TOKENS,
        Axis("peak, MB per layer", log=True),
        height=230,
        description=f"at {last.tokens} tokens: {TEXTBOOK} {last.peak[TEXTBOOK] / 1e6:.1f} MB, {FUSED} "
        f"{last.peak[FUSED] / 1e6:.1f} MB.",
    )
    return time, peak


def _told(point: AttentionPoint) -> str:
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


# ---------------------------------------------------------------- the square of pairs

TILE = 128
"""Rows and columns of the tile that is drawn. Each kernel chooses its own size, near this one."""
SIDE, TOP, GAP = 250.0, 44.0, 60.0
LEFT = (WIDTH - 2 * SIDE - GAP) / 2


def draw_square(config: ModelConfig, tokens: int, chunk: int, largest: int) -> Picture:
    """Textbook attention on the left, fused on the right, at the same scale.

    Args:
        tokens: of the prompt: rows (who looks) and columns (who is looked at).
        chunk: rows that are computed in one step.
        largest: the prompt length that fills the picture: area is comparable between pictures.
    """
    side = SIDE * tokens / largest
    chunk = min(chunk, tokens)
    steps = chunk_sizes(tokens, chunk)
    left, right = LEFT, LEFT + SIDE + GAP
    body = _heading(left, "textbook: every score, then the softmax") + _heading(
        right, "fused: a tile, used and forgotten"
    )
    body += _textbook(left, side, tokens, steps) + _fused(right, side, tokens, steps)
    rows = max(steps)
    built, tile = score_bytes(config, rows, tokens), tile_bytes(config, rows, tokens, TILE)
    base = TOP + SIDE
    words = "" if len(steps) == 1 else ", in the last step"
    body += text(left, base + 40, f"builds {size(built)} of scores per layer{words}", size=13, font_weight="bold")
    body += text(
        left, base + 57, f"{config.num_heads} heads × {rows} × {tokens} numbers of 4 bytes", size=11, fill=SOFT
    )
    body += text(right, base + 40, f"holds {size(tile)} of scores at a time, per worker", size=13, font_weight="bold")
    body += text(
        right, base + 57, f"a tile of {min(TILE, rows)} × {min(TILE, tokens)} numbers of 4 bytes", size=11, fill=SOFT
    )
    needed = tokens * (tokens + 1) // 2
    found = (
        f"{tokens} tokens: {needed} pairs are needed, {tokens * tokens} are in the square. Textbook attention builds "
        f"{size(built)} of scores per layer in its largest step, a fused worker holds {size(tile)} of them. "
        f"The prompt is computed in {len(steps)} step{'s' * (len(steps) != 1)} of at most {rows} rows."
    )
    return Picture("How many pairs of tokens does a prompt make?", body, base + 66, description=found)


def _heading(x: float, words: str) -> str:
    return text(x, 16, words, size=13) + text(x, 32, "across: the tokens looked at", size=11, fill=SOFT)


def _textbook(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """What each step builds: its rows, as long as all tokens so far. Above the diagonal it is masked away."""
    body, done = _frame(x), 0
    for rows in steps:
        y, done = TOP + side * done / tokens, done + rows
        width, height = side * done / tokens, side * rows / tokens
        body += rect(x, y, width, height, fill=ALARM, fill_opacity=0.16, stroke=ALARM, stroke_dasharray="3 2")
    body += _triangle(x, side) + _bands(x, side, tokens, steps)
    if side > 90 and len(steps) == 1:
        body += text(x + side * 0.56, TOP + side * 0.26, "in the future:", size=11, fill=INK)
        body += text(x + side * 0.56, TOP + side * 0.26 + 14, "built, masked", size=11, fill=INK)
    if side > 90:
        body += _inside(x + side * 0.08, TOP + side * 0.8, "needed")
    return body + _ends(x, side, tokens)


def _fused(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """The triangle in tiles; one of them is at work."""
    pitch = side * min(TILE / tokens, 1.0)
    count = max(1, round(side / pitch))
    body = _frame(x) + _triangle(x, side, 0.35) + _bands(x, side, tokens, steps)
    tiles = [(x + pitch * c, TOP + pitch * r, pitch, pitch) for r in range(count) for c in range(r + 1)]
    body += boxes(tiles, fill="none", stroke=PHASE_COLOURS["prefill"], stroke_width=0.6)
    row = count - 1
    column = row // 2
    body += rect(
        x + pitch * column, TOP + pitch * row, pitch, pitch, fill=phase_fill("prefill"), stroke=INK, stroke_width=1.6
    )
    return body + _ends(x, side, tokens)


def _triangle(x: float, side: float, opacity: float = 0.8) -> str:
    points = f"{x:.1f},{TOP:.1f} {x:.1f},{TOP + side:.1f} {x + side:.1f},{TOP + side:.1f}"
    return tag("polygon", points=points, fill=PHASE_COLOURS["prefill"], fill_opacity=opacity)


def _frame(x: float) -> str:
    """The largest square there is, for scale."""
    return rect(x, TOP, SIDE, SIDE, fill="none", stroke=FAINT)


def _bands(x: float, side: float, tokens: int, steps: list[int]) -> str:
    """A line under each step's rows, when there are few enough to see."""
    if len(steps) == 1 or side / len(steps) < 2.5:
        return ""
    body, done = "", 0
    for rows in steps[:-1]:
        done += rows
        y = TOP + side * done / tokens
        body += line(x, y, x + side * done / tokens, y, stroke=PAPER, stroke_width=1.6)
    return body


def _inside(x: float, y: float, words: str) -> str:
    return text(
        x, y, words, size=12, fill="#fff", stroke=PHASE_COLOURS["prefill"], stroke_width=3, paint_order="stroke"
    )


def _ends(x: float, side: float, tokens: int) -> str:
    under = text(x + side, TOP + side + 14, f"{tokens}", size=11, fill=SOFT, text_anchor="end")
    return under + text(x - 5, TOP + side, f"{tokens}", size=11, fill=SOFT, text_anchor="end")


# ---------------------------------------------------------------- an envelope

ENVELOPE_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
ENVELOPE_MODEL = find_model("llama-3-70b")


def envelope_seconds(tokens: int, gpus: int, mfu: float, card: str = "h100-sxm", attention: bool = True) -> float:
    """Least prefill time of one prompt on an idle server.

    Args:
        mfu: share of the data sheet's FLOP/s that prefill reaches.
    """
    flops = 2 * ENVELOPE_MODEL.layer_params * tokens
    if attention:
        flops += 4 * ENVELOPE_MODEL.layers * ENVELOPE_MODEL.query_size * tokens**2 / 2
    return flops / (gpus * find_hardware(card).flops["bfloat16"] * mfu)


def draw_envelope(tokens: int, gpus: int, mfu: float) -> Picture:
    """The envelope with and without attention, and the simulator's price of the same prompt."""
    priced = [simulated_70b.prefill_seconds(simulated_70b.deployment(tp=gpus), n) for n in ENVELOPE_LENGTHS]
    whole = [1e3 * envelope_seconds(n, gpus, mfu) for n in ENVELOPE_LENGTHS]
    curves = [
        Curve("2 P n / (GPUs x FLOP/s x MFU), and attention", ENVELOPE_LENGTHS, whole),
        Curve(
            "2 P n alone",
            ENVELOPE_LENGTHS,
            [1e3 * envelope_seconds(n, gpus, mfu, attention=False) for n in ENVELOPE_LENGTHS],
            "dashes",
        ),
        Curve("simulated", ENVELOPE_LENGTHS, [1e3 * each for each in priced]),
    ]
    here = 1e3 * envelope_seconds(tokens, gpus, mfu)
    axes = Axis("prompt, tokens", log=True), Axis("TTFT on an idle server, ms", log=True)
    title = f"Llama-3 70B, {gpus} H100s: {tokens:,} tokens take {here:.0f} ms by this estimate"
    return draw_chart(title, curves, *axes, [Mark("", x=tokens, y=here)])


def envelope_explorer() -> Explorer:
    return Explorer(
        draw_envelope,
        tokens=choices("prompt, tokens", list(ENVELOPE_LENGTHS), 4096),
        gpus=choices("GPUs", [2, 4, 8], 4),
        mfu=slider("MFU", 0.2, 0.8, 0.5, 0.05),
    )


# ---------------------------------------------------------------- with sliders

SQUARE_LENGTHS = (64, 128, 256, 512, 1024, 2048)
COUNTED_LENGTHS = tuple(2**i for i in range(7, 18))
WHOLE = "whole"


def length_explorer(lab: Lab, ladder: Ladder) -> Explorer:
    """Send a prompt of the slider's length to the real engine: its TTFT becomes a point among the measured ones."""
    own: list[tuple[int, float]] = []

    def draw(tokens: int) -> Picture:
        run = lab.run(one_prompt(lab, tokens), **fields_for(lab, tokens))
        own.extend((view.num_prompt_tokens, view.deliveries[0] - view.borders[0]) for view in run.views)
        return draw_ladder(ladder, own)

    steps = sorted({round(length * factor) for length in ladder.best for factor in (0.75, 1, 1.5)})
    offered = [tokens for tokens in steps if tokens < window(lab)]
    explorer = Explorer(
        draw, button="Send it", tokens=choices("prompt length, tokens", offered, offered[len(offered) // 2])
    )
    return explorer.showing(draw_ladder(ladder))


def square_explorer(lab: Lab) -> Explorer:
    """The square of pairs: length and rows a step."""
    config = lab_shape(lab)

    return Explorer(
        lambda tokens, chunk: draw_square(config, tokens, tokens if chunk == WHOLE else chunk, SQUARE_LENGTHS[-1]),
        tokens=choices("prompt length, tokens", SQUARE_LENGTHS, 512),
        chunk=choices("rows per step", (128, 256, 512, WHOLE), WHOLE),
    )


def flops_explorer(lab: Lab) -> Explorer:
    """Where the FLOPs of a prompt go, in the lab's model and in a 70B; in a small one, where the lab's is that large.
    Counted from their shapes."""
    own = lab_shape(lab)
    other = BIG if own.hidden_size < shape_of(BIG).hidden_size else SMALL
    shapes = {short_name(lab): own, other: shape_of(other)}

    return Explorer(
        lambda tokens: draw_shares(shapes, tokens), tokens=choices("prompt length, tokens", COUNTED_LENGTHS, 4096)
    )


def chunk_explorer(lab: Lab, swept: Mapping[int, Run]) -> Explorer:
    """The long prompt among chats, on the real engine, in chunks of the slider's size. Each run adds its points."""
    kept = dict(swept)
    longest = max(kept)
    offered = [*(chunk for chunk in OFFERED_CHUNKS[device_kind(lab)] if chunk < longest), longest]

    def draw(chunk: int) -> Html:
        kept[chunk] = lab.run(long_among_chats(lab), **chunk_fields(lab, chunk))
        return picture(chunk)

    def picture(chunk: int) -> Html:
        trades = [trade(kept[each]) for each in sorted(kept)]
        name = "whole" if chunk == longest else f"in chunks of {chunk}"
        return stack(
            draw_trade(trades, chunk), draw_timeline(kept[chunk], title=f"The long prompt, {name}: the last row")
        )

    start = sorted(kept)[len(kept) // 2]
    explorer = Explorer(draw, button="Run", chunk=choices("chunk, prompt tokens per step", offered, start))
    return explorer.showing(picture(start))


def explore_70b() -> Explorer:
    """The same trade for a 70B on four H100s, simulated for every chunk size at once."""

    def draw(tokens: int, chunk: int) -> Picture:
        trades = simulated.trades(tokens)
        on = simulated.deployment()
        floor = [simulated.weight_floor(on, each.steps) for each in trades]
        return draw_trade(trades, min(chunk, tokens), floor, "70B on four H100s: ")

    return Explorer(
        draw,
        tokens=choices("prompt length, tokens", (4096, 8192, 16384, 32768), 32768),
        chunk=choices("chunk, prompt tokens per step", simulated.CHUNKS, 512),
    )

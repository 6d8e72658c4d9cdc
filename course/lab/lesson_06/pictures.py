"""The pictures of lesson 06: two clocks, the roof, the price of a batch, how much of the machine is used."""

from collections.abc import Sequence

from course.lab.lesson_06.plane import LogAxis, Plane
from course.lab.lesson_06.roofline import Roof
from course.lab.lesson_06.steps import Dot
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, number, seconds
from course.lab.svg import FAINT, HALO, INK, SOFT, Picture, Scale, line, phase_fill, rect, tag, text, time_axis
from minillm.bench.report import with_unit

READ = "#56B4E9"
MULTIPLY = "#F0E442"
"""Okabe and Ito's sky blue and yellow: what a step has to do. What it took has decode's green."""
STRIPES = tag(
    "pattern",
    rect(0, 0, 6, 6, fill=READ) + tag("path", d="M0 6L6 0", stroke="#fff", stroke_width=1.6),
    id="@kv-stripes", width=6, height=6, patternUnits="userSpaceOnUse",
)  # fmt: skip
KV_FILL = "url(#@kv-stripes)"
LEFT, RIGHT = 118, 150


def draw_two_clocks(dots: Sequence[Dot], roof: Roof) -> Picture:
    """For each batch: seconds of reading at least, seconds of multiplying at least, and what the step took."""
    longest = max(max(dot.itl, roof.reading(dot.bytes), roof.multiplying(dot.flops)) for dot in dots)
    scale = Scale(0, 1.02 * longest, LEFT, WIDTH - RIGHT)
    bottom = 68 * len(dots) + 4
    body = tag("defs", STRIPES) + time_axis(scale, 0, bottom, "one decode step")
    for i, dot in enumerate(dots):
        y = 8 + 68 * i
        who = "1 request" if dot.batch == 1 else f"{dot.batch} requests"
        body += text(LEFT - 10, y + 30, who, size=13, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, y + 45, "in the step", size=11, fill=SOFT, text_anchor="end")
        weights, kv = roof.reading(dot.shape.weight_bytes), roof.reading(dot.kv_bytes)
        start = scale(0)
        body += rect(start, y, scale(weights) - start, 15, fill=READ)
        body += rect(scale(weights), y, scale(weights + kv) - scale(weights), 15, fill=KV_FILL)
        body += text(scale(weights + kv) + 5, y + 12, f"read at least {seconds(weights + kv)}", size=11, **HALO)
        products = roof.multiplying(dot.flops)
        body += rect(start, y + 19, max(scale(products) - start, 1), 15, fill=MULTIPLY, stroke=SOFT, stroke_width=0.6)
        body += text(scale(products) + 5, y + 31, f"multiply at least {seconds(products)}", size=11, **HALO)
        body += rect(start, y + 38, scale(dot.itl) - start, 15, fill=phase_fill("decode"))
        body += text(scale(dot.itl) + 5, y + 50, f"took {seconds(dot.itl)}", size=11, font_weight="bold", **HALO)
    found = "; ".join(
        f"{dot.called}: reading takes at least {seconds(roof.reading(dot.bytes))}, multiplying at least "
        f"{seconds(roof.multiplying(dot.flops))}, the step took {seconds(dot.itl)}"
        for dot in dots
    )
    return Picture("What does a step wait for: reading, or multiplying?", body, bottom + 34, description=found)


def draw_roofline(roof: Roof, dots: Sequence[Dot], before: Sequence[Dot] = (), title: str = "") -> Picture:
    """How far below this machine's roof is each step? A dot a kind of step.

    Args:
        dots: with their names.
        before: earlier ones, hollow, without names.
    """
    every = [*dots, *before]
    left = min([dot.intensity for dot in every] + [roof.ridge]) / 2.5
    right = max([dot.intensity for dot in every] + [roof.ridge]) * 3
    low = min([dot.flops / dot.itl for dot in every] + [roof.at(left)]) / 2
    plane = Plane(
        LogAxis("operations for each byte read (FLOP/byte)", left, right),
        LogAxis("operations per second (FLOP/s)", low, roof.flops * 2.5),
        height=330,
    )
    body = plane.frame() + draw_roof(plane, roof, left, right)
    for dot in before:
        body += plane.dot(dot.intensity, dot.flops / dot.itl, PHASE_COLOURS["decode"], hollow=True)
    for dot in dots:
        body += plane.dot(dot.intensity, dot.flops / dot.itl, PHASE_COLOURS["decode"])
    for dot in dots:
        label = str(dot.batch) if not before and len(dots) > 3 else f"{dot.called}: ITL {seconds(dot.itl)}"
        body += plane.name(dot.intensity, dot.flops / dot.itl, label)
    found = "; ".join(
        f"{dot.called}: {number(dot.intensity)} FLOP per byte, {dot.flops / dot.itl / roof.at(dot.intensity):.0%} of "
        "what the roof allows there"
        for dot in every
    )
    told = f"The roof bends at {number(roof.ridge)} FLOP per byte. {found}."
    return Picture(title or "How far below the roof is each step?", body, 330, description=told)


def draw_roof(plane: Plane, roof: Roof, left: float, right: float, name: str = "") -> str:
    """The sloping part (memory), the flat part (arithmetic), and where they meet."""
    start, ridge, end = (left, roof.at(left)), (roof.ridge, roof.flops), (right, roof.flops)
    body = plane.path([start, ridge, end], stroke=INK)
    prefix = f"{name}: " if name else ""
    body += plane.along(start, ridge, f"{prefix}reads {with_unit(roof.bandwidth, 'B/s')}")
    body += plane.along(ridge, end, f"{prefix}multiplies {with_unit(roof.flops, 'FLOP/s')}")
    x, y = plane.at(*ridge)
    body += line(x, y, x, plane.height - plane.bottom, stroke=ALARM, stroke_dasharray="2 3")
    body += text(x + 4, plane.height - plane.bottom - 6, f"bends at {number(roof.ridge)}", size=11, fill=ALARM)
    return body


def draw_price(dots: Sequence[Dot], title: str = "") -> Picture:
    """What does each doubling of the batch cost each reader, and what does it bring all of them together?"""
    rates, gaps = [dot.tokens_per_s for dot in dots], [1e3 * dot.itl for dot in dots]
    plane = Plane(
        LogAxis("all readers together: tokens per second", min(rates) / 1.4, max(rates) * 1.6),
        LogAxis("each reader: ITL, ms", min(gaps) / 1.5, max(gaps) * 1.6),
        height=300,
    )
    body = plane.frame() + plane.path(list(zip(rates, gaps)), stroke=PHASE_COLOURS["decode"])
    for rate, gap in zip(rates, gaps):
        body += plane.dot(rate, gap, PHASE_COLOURS["decode"])
    for dot, rate, gap in zip(dots, rates, gaps):
        body += plane.name(rate, gap, f"batch {dot.batch}" if dot in (dots[0], dots[-1]) else str(dot.batch))
    found = "; ".join(f"batch {d.batch}: {number(d.tokens_per_s)} tokens/s at {seconds(d.itl)}" for d in dots)
    return Picture(title or "What does each doubling of the batch cost, and bring?", body, 300, description=found)


def draw_use(dots: Sequence[Dot], roof: Roof) -> Picture:
    """MBU falls, MFU rises: which of the machine's two limits is being used?"""
    batches = [dot.batch for dot in dots]
    mbu, mfu = ([100 * share for share in shares] for shares in _shares(dots, roof))
    found = ", ".join(f"{d.batch}: MBU {d.mbu(roof):.0%} and MFU {d.mfu(roof):.0%}" for d in dots)
    return draw_chart(
        "Which limit of the machine does a step use?",
        [Curve("MBU: reading", batches, mbu, colour=READ), Curve("MFU: multiplying", batches, mfu, colour="#E69F00")],
        Axis("batch, requests", log=True),
        Axis("share of the measured limit, %", low=0, high=max(105, *mbu, *mfu)),
        [Mark("the limit", y=100)],
        description=f"By batch: {found}.",
    )


def _shares(dots: Sequence[Dot], roof: Roof) -> tuple[list[float], list[float]]:
    return [dot.mbu(roof) for dot in dots], [dot.mfu(roof) for dot in dots]


def draw_growth(dots: Sequence[Dot]) -> Picture:
    """The same batch over longer contexts: bytes read, and what the step took, bar beside bar."""
    most_bytes, longest = max(dot.bytes for dot in dots), max(dot.itl for dot in dots)
    half = (WIDTH - LEFT - 40) / 2
    data, time = Scale(0, most_bytes, 0, half - 70), Scale(0, longest, 0, half - 70)
    second = LEFT + half + 30
    body = tag("defs", STRIPES)
    body += text(LEFT, 12, "bytes read in a step", size=12, fill=SOFT) + text(second, 12, "ITL", size=12, fill=SOFT)
    for i, dot in enumerate(dots):
        y = 22 + 42 * i
        body += text(LEFT - 10, y + 12, f"batch {dot.batch}", size=12, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, y + 26, f"context {dot.context:.0f}", size=11, fill=SOFT, text_anchor="end")
        weights, kv = data(dot.shape.weight_bytes), data(dot.kv_bytes)
        body += rect(LEFT, y, weights, 26, fill=READ) + rect(LEFT + weights, y, kv, 26, fill=KV_FILL)
        body += text(LEFT + 6, y + 17, "weights", size=11, fill="#1f2328")
        share = dot.kv_bytes / dot.bytes
        body += text(LEFT + weights + kv + 5, y + 17, f"KV {share:.0%}", size=11)
        body += rect(second, y, time(dot.itl), 26, fill=phase_fill("decode"))
        body += text(second + time(dot.itl) + 5, y + 17, seconds(dot.itl), size=11)
    body += line(LEFT, 18, LEFT, 22 + 42 * len(dots), stroke=FAINT)
    found = "; ".join(
        f"{d.called}: {number(d.bytes / 1e6)} MB, {d.kv_bytes / d.bytes:.0%} of it KV, ITL {seconds(d.itl)}"
        for d in dots
    )
    return Picture("What do longer contexts add?", body, 30 + 42 * len(dots), description=found)


def draw_two_roofs(roofs: Sequence[Roof]) -> Picture:
    """Where does each machine's roof bend? Two machines in one plane."""
    left, right = 0.5, 20 * max(roof.ridge for roof in roofs)
    lows, highs = [roof.at(left) for roof in roofs], [roof.flops for roof in roofs]
    plane = Plane(
        LogAxis("operations for each byte read (FLOP/byte); for 16-bit weights, about the batch", left, right),
        LogAxis("operations per second (FLOP/s)", min(lows) / 3, 4 * max(highs)),
        height=330,
    )
    body = plane.frame() + "".join(draw_roof(plane, roof, left, right, roof.name) for roof in roofs)
    found = "; ".join(f"{roof.name} at {number(roof.ridge)} FLOP per byte" for roof in roofs)
    return Picture("Where does the roof bend?", body, 330, description=f"The roof bends: {found}.")

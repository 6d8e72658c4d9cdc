"""The pictures of lesson 06: two clocks, the roof, the price of a batch."""

from collections.abc import Sequence

from course.lab.lesson_06.roofline import Roof
from course.lab.lesson_06.steps import Dot
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import PHASE_COLOURS, WIDTH, number, seconds
from course.lab.svg import HALO, SOFT, Picture, Scale, phase_fill, rect, tag, text, time_axis
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
        dots: the first and the last with their names.
        before: earlier ones, without names.
    """
    every = [*before, *dots]
    intensities = [dot.intensity for dot in every]
    ends = [min([*intensities, roof.ridge]) / 2.5, roof.ridge, 3 * max([*intensities, roof.ridge])]
    curves = [roof_curve(roof, ends)]
    for name, some in (("steps before", before), ("steps", dots)):
        if some:
            curves.append(Curve(name, [d.intensity for d in some], [d.flops / d.itl / 1e9 for d in some], "points"))
    named = [dots[0], dots[-1]] if len(dots) > 1 else dots
    marks = [Mark(f"{d.called}: {seconds(d.itl)}", x=d.intensity, y=d.flops / d.itl / 1e9) for d in named]
    found = "; ".join(
        f"{dot.called}: {number(dot.intensity)} FLOP per byte, {dot.flops / dot.itl / roof.at(dot.intensity):.0%} of "
        "what the roof allows there"
        for dot in every
    )
    return draw_chart(
        title or "How far below the roof is each step?",
        curves,
        Axis("operations for each byte read (FLOP/byte)", log=True),
        Axis("GFLOP/s", log=True),
        [Mark(f"bends at {number(roof.ridge)}", x=roof.ridge), *marks],
        height=330,
        description=f"The roof bends at {number(roof.ridge)} FLOP per byte. {found}.",
    )


def roof_curve(roof: Roof, intensities: Sequence[float], unit: float = 1e9) -> Curve:
    """What the machine allows at these intensities, in so many FLOP/s."""
    reads, multiplies = with_unit(roof.bandwidth, "B/s"), with_unit(roof.flops, "FLOP/s")
    allowed = [roof.at(intensity) / unit for intensity in intensities]
    return Curve(f"the roof: reads {reads}, multiplies {multiplies}", intensities, allowed, style="dashes")


def draw_price(dots: Sequence[Dot]) -> Picture:
    """What does each doubling of the batch cost each reader, and what does it bring all of them together?"""
    rates, gaps = [dot.tokens_per_s for dot in dots], [1e3 * dot.itl for dot in dots]
    found = "; ".join(f"batch {d.batch}: {number(d.tokens_per_s)} tokens/s at {seconds(d.itl)}" for d in dots)
    return draw_chart(
        "What does each doubling of the batch cost, and bring?",
        [Curve("a batch", rates, gaps, colour=PHASE_COLOURS["decode"])],
        Axis("all readers together: tokens per second", log=True),
        Axis("each reader: ITL, ms", log=True),
        [Mark(f"batch {dot.batch}", x=rate, y=gap) for dot, rate, gap in zip(dots, rates, gaps)],
        height=300,
        description=found,
    )

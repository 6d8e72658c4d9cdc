"""Pictures of lesson 06: the clocks of a step, the roof, the price of a batch, weights against KV; and its tables."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from course.lab.display import Html, as_table, table_by_name
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.roof import Roof
from course.lab.style import COLOURS, PHASE_COLOURS, WIDTH, number, seconds, size
from course.lab.svg import HALO, SOFT, Picture, Scale, line, phase_fill, rect, text, time_axis
from course.lessons.lesson_06.run import GPU, LAUNCHING, Dot, StepProfile, largest_within, measure, pool_tokens
from course.simulator.errors import DoesNotFitError
from minillm.bench.report import with_unit

READ, KV_FILL = "#56B4E9", "#B9E0F7"
MULTIPLY = "#F0E442"
"""Okabe and Ito's sky blue, pale for KV, and yellow: what a step has to do. What it took has decode's green."""
NEITHER = COLOURS[4]
LEFT, RIGHT = 118, 150


def draw_clocks(dots: Sequence[Dot], roof: Roof) -> Picture:
    """For each batch: seconds of reading at least, of multiplying at least, and what the step took. The first two can
    go on side by side, so all three bars begin together, and what is neither lies beyond the longer one."""
    longest = max(max(dot.itl, roof.reading(dot.bytes), roof.multiplying(dot.flops)) for dot in dots)
    scale = Scale(0, 1.02 * longest, LEFT, WIDTH - RIGHT)
    bottom = 68 * len(dots) + 4
    body, told = time_axis(scale, 0, bottom, "one decode step"), []
    for i, dot in enumerate(dots):
        y, weights, kv = 8 + 68 * i, roof.reading(dot.shape.weight_bytes), roof.reading(dot.kv_bytes)
        reads, products, rest = weights + kv, roof.multiplying(dot.flops), dot.rest(roof)
        who = "1 request" if dot.batch == 1 else f"{dot.batch} requests"
        body += text(LEFT - 10, y + 30, who, size=13, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, y + 45, "in the step", size=11, fill=SOFT, text_anchor="end")
        said = f"read ≥ {seconds(reads)}", f"multiply ≥ {seconds(products)}", f"took {seconds(dot.itl)}"
        bars = (
            [(weights, READ), (kv, KV_FILL)],
            [(products, MULTIPLY)],
            [(dot.itl - rest, phase_fill("decode")), (rest, NEITHER)],
        )
        written = ""  # over the dashed line
        for j, (words, parts) in enumerate(zip(said, bars)):
            edge, top = 0.0, y + 19 * j
            for part, fill in parts:
                wide = max(scale(edge + part) - scale(edge), 1 if j == 1 else 0)
                body += rect(scale(edge), top, wide, 15, fill=fill, stroke=SOFT, stroke_width=0.4)
                edge += part
            written += text(scale(edge) + 5, top + 12, words, size=11, font_weight="bold" if j == 2 else None, **HALO)
        longer = scale(dot.itl - rest)
        body += line(longer, y - 3, longer, y + 56, stroke=SOFT, stroke_dasharray="3 3") + written
        if longer - LEFT > 130:
            told_in = "memory-bound" if reads >= products else "compute-bound"
            body += text(LEFT + 5, y + 50, told_in, size=11, fill="#000")
        if scale(rest) - scale(0) > 70:
            body += text(
                scale(dot.itl) - 5, y + 50, f"the rest: {rest / dot.itl:.0%}", size=11, text_anchor="end", fill="#000"
            )
        told.append(f"{dot.called}: {', '.join(said)}; {rest / dot.itl:.0%} of it is overhead")
    return Picture(
        "What does a step wait for: memory, arithmetic, or overhead?", body, bottom + 34, description="; ".join(told)
    )


def draw_roofline(roof: Roof, dots: Sequence[Dot], before: Sequence[Dot] = (), title: str = "") -> Picture:
    """How far below this machine's roof is each step? A dot a kind of step. Under the roof, what the parts of the last
    one allow: its linear layers and its attention run one after the other, each with an intensity of its own.

    Args:
        dots: the first and the last with their names.
        before: earlier ones, without names.
    """
    every, (unit, unit_name) = [*before, *dots], (1e12, "TFLOP/s") if roof.flops >= 1e13 else (1e9, "GFLOP/s")
    intensities = [dot.intensity for dot in every]
    ends = [min([*intensities, roof.ridge]) / 2.5, roof.ridge, 3 * max([*intensities, roof.ridge])]
    curves = [roof_curve(roof, ends, unit)]
    for name, some in (("steps before", before), ("steps", dots)):
        if some:
            curves.append(Curve(name, [d.intensity for d in some], [d.flops / d.itl / unit for d in some], "points"))
    allowed = [dot.flops / dot.floor(roof) / unit for dot in every]
    curves.append(Curve("what linear layers, then attention allow", intensities, allowed, "points"))
    named = [dots[0], dots[-1]] if len(dots) > 1 else dots
    marks = [Mark(f"{d.called}: {seconds(d.itl)}", x=d.intensity, y=d.flops / d.itl / unit) for d in named]
    found = "; ".join(
        f"{dot.called}: {number(dot.intensity)} FLOP per byte, {dot.floor(roof) / dot.itl:.0%} of what its parts allow"
        for dot in every
    )
    return draw_chart(
        title or "How far below the roof is each step?",
        curves,
        Axis("operations for each byte read (FLOP/byte)", log=True),
        Axis(unit_name, log=True),
        [Mark(f"bends at {number(roof.ridge)}", x=roof.ridge), *marks],
        height=330,
        description=f"The roof bends at {number(roof.ridge)} FLOP per byte. {found}.",
    )


def roof_curve(roof: Roof, intensities: Sequence[float], unit: float = 1e9) -> Curve:
    """What the machine allows at these intensities, in so many FLOP/s."""
    reads, multiplies = with_unit(roof.bandwidth, "B/s"), with_unit(roof.flops, "FLOP/s")
    allowed = [roof.at(intensity) / unit for intensity in intensities]
    return Curve(f"the roof: reads {reads}, multiplies {multiplies}", intensities, allowed, style="dashes")


def slo_explorer(dots: Sequence[Dot], single_s: float, start: float = 3.0) -> Explorer:
    """The price of a batch, with the ITL SLO on a slider: in ITLs of a single request, which is `single_s`."""
    return Explorer(
        lambda times: draw_price(dots, times * single_s),
        times=slider("ITL SLO, as a multiple of a single request's", 1.2, 20.0, start, 0.1),
    )


def draw_price(dots: Sequence[Dot], slo: float) -> Picture:
    """Which is the largest batch that keeps the SLO, and what does it bring?"""
    rates, gaps = [dot.tokens_per_s for dot in dots], [1e3 * dot.itl for dot in dots]
    kept = largest_within(dots, slo)
    found = "; ".join(f"batch {d.batch}: {number(d.tokens_per_s)} tokens/s at {seconds(d.itl)}" for d in dots)
    ends = [Mark(f"batch {dots[i].batch}", x=rates[i], y=gaps[i]) for i in (0, len(dots) // 2, -1)]
    beyond = " at least, where this sweep ends" if kept == dots[-1].batch else ""
    return draw_chart(
        f"An ITL SLO of {seconds(slo)}: it holds up to batch {kept:.0f}{beyond}",
        [Curve("a batch", rates, gaps, colour=PHASE_COLOURS["decode"])],
        Axis("all requests together: tokens per second", log=True),
        Axis("each request: ITL, ms", low=0),
        [*ends, Mark("SLO", y=1e3 * slo)],
        height=300,
        description=found,
    )


# ---------------------------------------------------------------- weights or KV

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BITS = {"16 bits": None, "8 bits": "int8", "4 bits": "int4"}


def weights_or_kv(shapes: Mapping[str, ModelShape], start: str) -> Explorer:
    """The picture with sliders: the model, batch, context, and in how many bits weights and KV are kept."""

    def draw(model: str, batch: int, context: int, weights: str, kv: str) -> Picture:
        return draw_bytes(shapes[model].stored_as(BITS[weights], BITS[kv]), batch, context)

    return Explorer(
        draw,
        model=buttons("model", list(shapes), start),
        batch=choices("batch, requests", BATCHES, 32),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        weights=buttons("weights in", list(BITS)),
        kv=buttons("KV in", ["16 bits", "8 bits"]),
    )


def draw_bytes(shape: ModelShape, batch: int, context: int) -> Picture:
    """What a step of this batch reads, by the context of its requests. Right of the border KV is the larger part."""
    kv, total = shape.kv_bytes(batch, context), shape.bytes(batch, context)
    curves = [
        Curve("weights", CONTEXTS, [shape.weight_bytes / 1e9] * len(CONTEXTS), style="dashes", colour=READ),
        Curve(f"KV of {batch} requests", CONTEXTS, [shape.kv_bytes(batch, each) / 1e9 for each in CONTEXTS]),
    ]
    marks = [Mark(f"KV is {kv / total:.0%} of this step", x=context, y=kv / 1e9)]
    border, gpus = shape.crossover_tokens / batch, "one H100" if shape.gpus == 1 else f"{shape.gpus} H100s"
    if CONTEXTS[0] < border < CONTEXTS[-1]:
        marks.append(Mark(f"KV = weights: {border:,.0f}", x=border))
    with suppress(DoesNotFitError):
        if (room := shape.room_tokens()) is not None:
            marks.append(Mark(f"KV capacity of {gpus}", y=room * shape.kv_bytes_per_token / 1e9))
    parts = f"weights {size(shape.weight_bytes)}, KV {size(kv)}"
    parts += "" if shape.fits(batch, context) else f"; no room for this on {gpus}"
    parts += f"; trained for {shape.cost.max_context:,} tokens only" if context > shape.cost.max_context else ""
    border_told = f"KV is as much as the weights at {shape.crossover_tokens:,.0f} tokens in all"
    return draw_chart(
        f"{shape.name}: one step reads {size(total)}: {parts}",
        curves,
        Axis("context of each request (tokens)", log=True),
        Axis("read in a step (GB)", log=True),
        marks,
        description=f"Batch {batch}, context {context}: {parts}; KV is {kv / total:.0%} of the bytes. {border_told}.",
    )


# ---------------------------------------------------------------- the roofline, live

LIVE_CONTEXTS = {"a few words": 0, "about 250 tokens": 250, "about 1000": 1000, "about 4000": 4000}
LIVE_PATIENCE_S = 2.5
"""Prompts may take so long to compute at the machine's peak, before a press shows a dot."""


def roofline_lab(lab: Lab, roof: Roof, dots: Sequence[Dot]) -> Explorer:
    """Every press is a run, and a dot. Earlier dots stay, without names. Batches are those of the sweep."""
    seen, shape = list(dots), dots[0].shape
    most = LIVE_PATIENCE_S / roof.multiplying(shape.flops_per_token(0))
    contexts = {name: tokens for name, tokens in LIVE_CONTEXTS.items() if tokens < 0.9 * shape.cost.max_context}

    def run(batch: int, context: str) -> Iterator[Picture]:
        if batch * contexts[context] > min(most, pool_tokens(lab)):
            raise ValueError(f"that takes too long here: keep batch x context below {number(most)} tokens")
        yield draw_roofline(roof, [], seen, title=f"Prefilling {batch} prompts, then decoding: wait for the dot …")
        dot = measure(lab, batch, contexts[context])
        yield draw_roofline(roof, [dot], seen)
        seen.append(dot)

    batches = choices("batch, requests", [2**i for i in range(dots[-1].batch.bit_length())], 4)
    chosen = buttons("context of each", list(contexts))
    return Explorer(run, button="Run these", batch=batches, context=chosen).showing(draw_roofline(roof, seen))


# ---------------------------------------------------------------- tables


def reads(roof: Roof) -> str:
    """Its bandwidth; and the range, if it was measured."""
    told = with_unit(roof.bandwidth, "B/s")
    if roof.slowest == roof.fastest:
        return told
    return f"{told} ({' to '.join(with_unit(each, 'B/s') for each in (roof.slowest, roof.fastest))})"


def roofs_table(roofs: Sequence[Roof]) -> Html:
    """Reading, multiplying, and how many operations fit into the reading of one byte."""
    rows = [
        (roof.name, reads(roof), with_unit(roof.flops, "FLOP/s"), number(roof.ridge), roof.source)
        for roof in dict.fromkeys(roofs)  # a simulated H100 beside an H100 is one
    ]
    return as_table(("machine", "reads", "multiplies", "FLOP per byte", "from"), rows)


def dots_table(dots: Sequence[Dot], roof: Roof) -> Html:
    """How much of the machine each step used. What is neither is what the larger of MBU and MFU leaves."""
    columns = {
        "weights, KV": lambda dot: f"{size(dot.shape.weight_bytes)}, {size(dot.kv_bytes)}",
        "FLOP per byte": lambda dot: number(dot.intensity),
        "ITL": lambda dot: seconds(dot.itl),
        "tokens/s": lambda dot: number(dot.tokens_per_s),
        "MBU": lambda dot: f"{dot.mbu(roof):.0%}",
        "MFU": lambda dot: f"{dot.mfu(roof):.0%}",
        "the rest": lambda dot: f"{dot.rest(roof) / dot.itl:.0%}",
    }
    return table_by_name("batch", {str(dot.batch): dot for dot in dots}, columns)


def profile_table(found: StepProfile) -> Html:
    """Time and launches of a step, by part: of kernels on a GPU, if the profiler can tell; else of the host."""
    rows = [
        (part, seconds(spent), f"{spent / found.total:.0%}", f"{found.calls.get(part, 0):.0f}")
        for part, spent in found.seconds.items()
    ]
    whose = "GPU time" if found.clock == GPU else "time to launch" if found.clock == LAUNCHING else "time"
    return as_table((f"one step, batch {found.batch}", whose, "share", "calls"), rows)

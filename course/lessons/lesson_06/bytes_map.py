"""Weights or KV: which of them is read more? Both against the context, with the border where they are equal."""

from collections.abc import Mapping
from contextlib import suppress

from course.lab.explorer import Explorer, buttons, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import size
from course.lab.svg import Picture
from course.lessons.lesson_06.pictures import READ
from course.lessons.lesson_06.shapes import Shape
from course.simulator.errors import DoesNotFitError

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BITS = {"16 bits": None, "8 bits": "int8", "4 bits": "int4"}


def weights_or_kv(shapes: Mapping[str, Shape], start: str) -> Explorer:
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


def draw_bytes(shape: Shape, batch: int, context: int) -> Picture:
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
            marks.append(Mark(f"room for KV on {gpus}", y=room * shape.kv_bytes_per_token / 1e9))
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

"""Weights or KV: which of them is read more? A map of batches and contexts, with a border on it."""

import math
from collections.abc import Mapping, Sequence

from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, buttons, choices
from course.lab.lesson_06.pictures import KV_FILL, READ, STRIPES
from course.lab.lesson_06.plane import LogAxis, Plane
from course.lab.lesson_06.shapes import Shape
from course.lab.style import ALARM, WIDTH, size
from course.lab.svg import INK, SOFT, Picture, rect, tag, text
from minillm.core.errors import DoesNotFitError

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BITS = {"16 bits": None, "8 bits": "int8", "4 bits": "int4"}
BAR_TOP, MAP_TOP, HEIGHT = 26, 96, 400
LEFT, RIGHT = 78, 18
HATCH = tag(
    "pattern",
    tag("path", d="M0 0L8 8", stroke=SOFT, stroke_width=0.8),
    id="@no-room", width=8, height=8, patternUnits="userSpaceOnUse",
)  # fmt: skip


def weights_or_kv(shapes: Mapping[str, Shape], start: str) -> Explorer:
    """The map with sliders: the model, batch, context, and in how many bits weights and KV are kept."""

    def draw(model: str, batch: int, context: int, weights: str, kv: str) -> Picture:
        shape = shapes[model].stored_as(BITS[weights], BITS[kv])
        return draw_map(shape, batch, context)

    return Explorer(
        draw,
        model=buttons("model", list(shapes), start),
        batch=choices("batch, requests", BATCHES, 8),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        weights=buttons("weights in", list(BITS)),
        kv=buttons("KV in", ["16 bits", "8 bits"]),
    )


def draw_map(shape: Shape, batch: int, context: int) -> Picture:
    """A bar: the bytes of this step. Below it, all steps: beyond the border KV is the larger part of the bar."""
    plane = Plane(
        LogAxis("context of each request (tokens)", CONTEXTS[0], CONTEXTS[-1]),
        LogAxis("batch (requests)", BATCHES[0], BATCHES[-1]),
        height=HEIGHT, top=MAP_TOP, left=LEFT, right=RIGHT,
    )  # fmt: skip
    body = tag("defs", STRIPES + HATCH) + _bar(shape, batch, context) + plane.frame()
    body += _borders(plane, shape, (context, batch))
    body += plane.dot(context, batch, ALARM, radius=7) + plane.name(context, batch, _share(shape, batch, context))
    return Picture(
        f"{shape.name}: which is read more, weights or KV?", body, HEIGHT, description=_told(shape, batch, context)
    )


def _bar(shape: Shape, batch: int, context: int) -> str:
    total, whole = shape.bytes(batch, context), WIDTH - LEFT - RIGHT
    split = whole * shape.weight_bytes / total
    body = text(LEFT, 14, f"one step reads {size(total)}: {_parts(shape, batch, context)}", size=12)
    body += text(LEFT, BAR_TOP + 44, _but(shape, batch, context), size=12, fill=ALARM)
    body += rect(LEFT, BAR_TOP, split, 26, fill=READ) + rect(LEFT + split, BAR_TOP, whole - split, 26, fill=KV_FILL)
    dark = {"fill": "#1f2328", "stroke": "#ffffff", "stroke_width": 2, "paint_order": "stroke"}
    if split > 60:
        body += text(LEFT + 6, BAR_TOP + 17, "weights", size=11, **dark)
    if whole - split > 30:
        body += text(LEFT + whole - 6, BAR_TOP + 17, "KV", size=11, text_anchor="end", **dark)
    return body


def _borders(plane: Plane, shape: Shape, dot: tuple[float, float]) -> str:
    """The line on which KV is as large as the weights; and, hatched, what has no room on the GPUs.

    Args:
        dot: the names of the lines keep away from it.
    """
    body = ""
    if (room := _room(shape)) is not None:
        body += _beyond(plane, room, fill="url(#@no-room)", fill_opacity=0.7)
        body += _name_line(plane, room, f"no room for this on {_gpus(shape)}", dot, above=True)
    line = _cut(plane, shape.crossover_tokens)
    if len(line) > 1:
        body += plane.path(line, stroke=INK, stroke_width=2.5)
        words = f"KV = weights: {shape.crossover_tokens:,.0f} tokens in all"
        body += _name_line(plane, shape.crossover_tokens, words, dot, above=False)
    return body


def _cut(plane: Plane, tokens: float) -> list[tuple[float, float]]:
    """The part of  batch x context = tokens  that lies on the map."""
    x, y = plane.x, plane.y
    first, last = max(x.low, tokens / y.high), min(x.high, tokens / y.low)
    return [(first, tokens / first), (last, tokens / last)] if first < last else []


def _beyond(plane: Plane, tokens: float, **look: object) -> str:
    """Everything above the line  batch x context = tokens."""
    ends = _cut(plane, tokens)
    if not ends:
        return ""
    (x0, y0), (x1, y1) = ends
    corner = [(plane.x.high, y1), (plane.x.high, plane.y.high), (x0, plane.y.high)]
    return plane.area([(x0, y0), (x1, y1), *corner], **look)


def _name_line(plane: Plane, tokens: float, words: str, away_from: tuple[float, float], above: bool) -> str:
    """Words along the line  batch x context = tokens, where they are far from a point."""
    ends = _cut(plane, tokens)
    if not ends:
        return ""
    (x0, y0), (x1, y1) = (plane.at(*end) for end in ends)
    half = 3.4 * len(words) / max(math.hypot(x1 - x0, y1 - y0), 1)
    low = half + 0.06
    if low > 0.5:
        return "" if above else plane.name(*ends[0], words)
    places = [low + (1 - 2 * low) * i / 4 for i in range(5)]
    x, y = plane.at(*away_from)  # its own name stands to its right
    far = max(places, key=lambda p: math.dist((x0 + p * (x1 - x0), y0 + p * (y1 - y0)), (x + 45, y)))
    return plane.along(*ends, words, far, -7 if above else 16)


def _room(shape: Shape) -> float | None:
    try:
        return shape.room_tokens()
    except DoesNotFitError:
        return None


def _share(shape: Shape, batch: int, context: int) -> str:
    return f"KV {shape.kv_bytes(batch, context) / shape.bytes(batch, context):.0%}"


def _parts(shape: Shape, batch: int, context: int) -> str:
    return f"weights {size(shape.weight_bytes)}, KV {size(shape.kv_bytes(batch, context))}"


def _but(shape: Shape, batch: int, context: int) -> str:
    """Why such a step will not happen; empty if it may."""
    words = []
    if not shape.fits(batch, context):
        words.append(f"no room for this on {_gpus(shape)}")
    if context > shape.cost.max_context:
        words.append(f"trained for {shape.cost.max_context:,} tokens only")
    return "; ".join(words)


def _told(shape: Shape, batch: int, context: int) -> str:
    return (
        f"Batch {batch}, context {context}: {_parts(shape, batch, context)}; "
        f"{_share(shape, batch, context)} of the bytes. {_but(shape, batch, context)} "
        f"KV is as much as the weights at {shape.crossover_tokens:,.0f} tokens in all."
    )


def _gpus(shape: Shape) -> str:
    return "one H100" if shape.gpus == 1 else f"{shape.gpus} H100s"


def crossover_table(shapes: Sequence[Shape]) -> Html:
    """For each model: how many tokens it takes, and whether there is room for so many."""
    return table_by_name(
        "model",
        {shape.name: shape for shape in shapes},
        {
            "attention": lambda shape: f"{shape.kind}, {shape.query_heads} heads, {shape.cost.num_kv_heads} of KV",
            "weights read": lambda shape: size(shape.weight_bytes),
            "KV a token": lambda shape: f"{shape.kv_bytes_per_token / 1e3:.0f} kB",
            "KV = weights at, tokens": lambda shape: f"{shape.crossover_tokens:,.0f}",
            "room for, tokens": lambda shape: "–" if _room(shape) is None else f"{_room(shape):,.0f} ({_gpus(shape)})",
        },
    )

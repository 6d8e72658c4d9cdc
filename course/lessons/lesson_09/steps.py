"""How long a decode step takes in each format, batch by batch: what was promised by the bytes, and what came."""

from collections.abc import Mapping, Sequence

from course.lab.display import Html, table_by_name
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_06.roofline import Roof
from course.lessons.lesson_06.shapes import Shape
from course.lessons.lesson_06.steps import Dot
from course.lessons.lesson_06.traffic import room, side_by_side
from course.lessons.lesson_09.formats import FORMATS, PLAIN, Shelf

BATCHES, SHORT_BATCHES = (1, 4, 8, 16, 32), (1, 16)
PLAUSIBLE = 1.25
"""A speed-up over what the bytes allow by more than this is not the format's: something else was running, or the
rounded weights fit into a cache that the others are too large for."""
WEIGHTS = (PLAIN, "int8", "int4")
RESTLESS = "Don't trust this: the machine was busy with something else. Run the sweep again."
Sweep = dict[str, list[Dot]]
"""By format, decode steps of growing batches, short contexts."""


def shape_of(shelf: Shelf, name: str) -> Shape:
    """The lab's model in this format."""
    fields = {**FORMATS[name].weights, **FORMATS[name].kv}
    return Shape.of_lab(shelf.lab).stored_as(fields.get("quantization"), fields.get("kv_cache_dtype"))


def sweep(shelf: Shelf, names: Sequence[str] = WEIGHTS, batches: Sequence[int] | None = None) -> Sweep:
    """Every batch in every format, by turns. The quietest run of each counts: a disturbance can only slow one down."""
    is_long = shelf.lab.scale == 1
    names = shelf.usable(names)
    found: Sweep = {name: [] for name in names}
    for batch in batches or (BATCHES if is_long else SHORT_BATCHES):
        work = side_by_side(batch, 0, (16 if batch <= 4 else 8) if is_long else 7)
        for name, runs in shelf.turns(work, names, **room(work)).items():
            each = [Dot.of(shape_of(shelf, name), run) for run in runs]
            found[name].append(min(each, key=lambda dot: dot.itl))
    return found


def speedup(found: Sweep, name: str, place: int = 0) -> float:
    """Decode speed over that of 16 bits, at one batch of the sweep: by the medians of its steps."""
    return found[PLAIN][place].itl / found[name][place].itl


def slowdown(found: Sweep, name: str) -> float:
    """A decode step at the largest batch of the sweep, over that of 16 bits: by the medians of its steps."""
    return 1 / speedup(found, name, -1)


def least_ratio(shelf: Shelf, name: str) -> float:
    """The smallest share of its time that a step can take in a format, by its bytes; with some room for noise."""
    plain, rounded = (shape_of(shelf, each).weight_bytes for each in (PLAIN, name))
    return rounded / plain / PLAUSIBLE


def promises_table(found: Sweep, roof: Roof) -> Html:
    """One reader: what fewer bytes promise at this machine's bandwidth, and what a step took."""
    plain = found[PLAIN][0]
    return table_by_name(
        "batch 1",
        {name: dots[0] for name, dots in found.items()},
        {
            "bytes of a step": lambda dot: f"{dot.bytes / 1e6:.0f} MB",
            "time to read them, at least": lambda dot: seconds(roof.reading(dot.bytes)),
            "step, if only reading changed": lambda dot: seconds(
                max(plain.itl - roof.reading(plain.bytes - dot.bytes), 0.0)
            ),
            "step, measured": lambda dot: seconds(dot.itl) + (" (restless)" if dot.is_restless else ""),
            "speed-up if a step only read weights": lambda dot: f"×{plain.bytes / dot.bytes:.2f}",
            "speed-up, measured": lambda dot: f"×{plain.itl / dot.itl:.2f}",
        },
    )


def draw_speedups(found: Sweep) -> Picture:
    """Decode speed over 16 bits, by batch: above the line it pays, below it costs."""
    curves = []
    for name, dots in found.items():
        if name != PLAIN:
            ratios = [speedup(found, name, i) for i in range(len(dots))]
            curves.append(Curve(name, [dot.batch for dot in dots], ratios))
    told = "; ".join(
        f"{curve.name}: " + ", ".join(f"×{y:.2f} at batch {x}" for x, y in zip(curve.xs, curve.ys)) for curve in curves
    )
    top = max(1.1, *(1.1 * max(curve.ys) for curve in curves))
    return draw_chart(
        RESTLESS if is_restless(found) else "At which batch do fewer bits stop paying?",
        curves,
        Axis("batch, requests", log=True),
        Axis(f"decode speed, {PLAIN} = 1", low=0, high=top),
        [Mark(f"as fast as {PLAIN}", y=1)],
        description=told,
    )


def break_even(found: Sweep, name: str) -> int | None:
    """The smallest batch of the sweep at which a format is no faster; None = it is faster at all of them."""
    dots = found[name]
    return next((dot.batch for i, dot in enumerate(dots) if speedup(found, name, i) <= 1), None)


def is_restless(found: Mapping[str, Sequence[Dot]]) -> bool:
    """Whether something else was running, too: steps of one kind that differ, or more gain than the bytes allow."""
    uneven = any(dots[i].is_restless for dots in found.values() for i in (0, -1))
    allowed = {name: PLAUSIBLE * found[PLAIN][0].bytes / dots[0].bytes for name, dots in found.items()}
    return uneven or any(
        speedup(found, name, i) > allowed[name] for name, dots in found.items() for i in range(len(dots))
    )

"""Curves and points between two axes. matplotlib draws; the look is the course's.

A curve has a colour, a marker and a dash of its own, so that colour is never the only signal. Ink follows the
notebook's theme, light or dark. matplotlib is imported where it draws: who only describes a chart, as the incidents in
a terminal do, doesn't wait for it. In a browser tab there is none; plain_chart.py draws there.
"""

import importlib.util
import io
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from course.lab.pictures.plain_chart import (
    Trace,
    corner_of_limit,
    corner_of_ring,
    drawn_plainly,
    has_legend,
    is_long,
    trace,
)
from course.lab.style import ALARM, COLOURS, WIDTH, number
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture
from minillm.core.brief import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: dict[str, str] = {"line": "-", "dashes": "--", "points": ""}
MOST_MARKERS = 40
"""On one line; where there are more points, some are left unmarked."""
INKS = {"#010101": INK, "#020202": SOFT, "#030303": FAINT, "#040404": PAPER}
"""Stand-ins that matplotlib understands for colours that only the theme knows."""
LOOK = {
    "font.size": 11,
    "svg.fonttype": "none",
    "svg.hashsalt": "minillm",
    "text.color": "#010101",
    "axes.labelcolor": "#020202",
    "axes.edgecolor": "#030303",
    "xtick.color": "#020202",
    "ytick.color": "#020202",
    "grid.color": "#030303",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Curve:
    """One named series of points (x, y), in the order in which they are joined."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: Literal["line", "dashes", "points"] = "line"
    """Measured points with a `line`; a formula with `dashes` and no markers; a cloud of `points`."""
    colour: str | None = None

    __repr__ = brief


@dataclass(frozen=True)
class Axis:
    """One axis. The label says the unit."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    """Names of the places 0, 1, 2, ..., where the axis has no numbers."""
    whole: bool = False
    """Counts: no number stands between two whole ones."""


@dataclass(frozen=True)
class Mark:
    """A labelled limit: a vertical line at x, or a horizontal one at y. With both, a ringed point."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class Panel:
    """One of several charts over the same x axis."""

    curves: Sequence[Curve]
    y: Axis
    marks: Sequence[Mark] = ()
    height: float = 110


def draw_chart(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    marks: Sequence[Mark] = (),
    *,
    height: float = 280,
    description: str = "",
) -> Picture:
    """One chart that answers one question.

    Args:
        description: what is to be seen, in words and numbers; None given, each curve's ends are told.
    """
    return draw_panels(title, [Panel(curves, y, marks, height)], x, description=description)


def draw_panels(title: str, panels: Sequence[Panel], x: Axis, *, description: str = "") -> Picture:
    """Charts below each other, over one x axis.

    Args:
        description: as of `draw_chart`.
    """
    has_library = importlib.util.find_spec("matplotlib") is not None
    body, height = _drawn(panels, x) if has_library else drawn_plainly(panels, x)
    found = [_told(curve, x, panel.y) for panel in panels for curve in panel.curves]
    found += [f"marked: {mark.label}" for panel in panels for mark in panel.marks if mark.label]
    return Picture(title, body, height, description=description or "; ".join(found))


def _drawn(panels: Sequence[Panel], x: Axis) -> tuple[str, float]:
    """The inside of a picture, and its height."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    heights = [panel.height for panel in panels]
    if len(panels) > 1 and x.low is not None and x.high is None:  # a limit set for one would be all of theirs
        ends = [max(curve.xs) for panel in panels for curve in panel.curves if len(curve.xs)]
        ends += [mark.x for panel in panels for mark in panel.marks if mark.x is not None]
        x = replace(x, high=x.low + 1.03 * (max(ends, default=x.low + 1) - x.low))
    with rc_context(LOOK):
        figure = Figure(figsize=(WIDTH / 72, sum(heights) / 72), dpi=72, layout="constrained")
        figure.patch.set_visible(False)
        column = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for i, (axes, panel) in enumerate(zip(column, panels)):
            _draw_panel(axes, panel, x)
            if has_legend(panels, i):
                axes.legend(frameon=False, loc="best")
        return _inside(figure), sum(heights)


def _draw_panel(axes: "Axes", panel: Panel, x: Axis) -> None:
    _dress(axes, x, panel.y)
    axes.label_outer()
    if is_long(panel):
        has_labels = any(mark.label and mark.y is None for mark in panel.marks)
        axes.set_ylabel("")
        axes.set_title(f"↓ {panel.y.label}", loc="left", fontsize=11, color="#020202", pad=20 if has_labels else 6)
    for i, curve in enumerate(panel.curves):
        axes.plot(
            curve.xs,
            curve.ys,
            color=curve.colour or COLOURS[i % len(COLOURS)],
            linestyle=DASHES[curve.style],
            marker="" if curve.style == "dashes" else MARKERS[i % len(MARKERS)],
            markevery=1 if curve.style == "points" else max(len(curve.xs) // MOST_MARKERS, 1),
            markersize=5,
            label=curve.name,
        )
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(panel.y.low, panel.y.high)
    for mark in panel.marks:
        _draw_mark(axes, mark)
    axes.get_xlim(), axes.get_ylim()  # the limits are final from here on
    traces = [_trace(axes, panel, curve) for curve in panel.curves]
    for mark in panel.marks:
        _label_mark(axes, mark, panel, traces)


def _dress(axes: "Axes", x: Axis, y: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis, scale, ruler in ((x, axes.set_xscale, axes.xaxis), (y, axes.set_yscale, axes.yaxis)):
        if axis.log:
            scale("log")
            ruler.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
            ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ruler.set_minor_formatter(NullFormatter())
        if axis.whole:
            ruler.set_major_locator(MaxNLocator("auto", integer=True))
        if axis.names:
            ruler.set_ticks(range(len(axis.names)), axis.names)
    axes.set(xlabel=x.label, ylabel=y.label)
    axes.grid(True, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)


def _size(panel: Panel) -> tuple[float, float]:
    """About how wide and high its axes are, in pixels, once there's room for the words around them."""
    return WIDTH - 60, max(panel.height - 45, 40)


def _on_axes(axes: "Axes", panel: Panel, x: float, y: float) -> tuple[float, float]:
    """Where a point is drawn, in pixels from the axes' lower left."""
    across, up = (axes.transScale + axes.transLimits).transform((x, y))
    width, height = _size(panel)
    return float(across) * width, float(up) * height


def _trace(axes: "Axes", panel: Panel, curve: Curve) -> Trace:
    """Where it is drawn: not where a value is missing (NaN), endless, or none that a log axis has."""
    is_shown = axes.get_xscale() != "log", axes.get_yscale() != "log"
    points = [(x, y) for x, y in zip(curve.xs, curve.ys) if (is_shown[0] or x > 0) and (is_shown[1] or y > 0)]
    drawn = [_on_axes(axes, panel, x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return trace(drawn, curve.style != "points")


def _draw_mark(axes: "Axes", mark: Mark) -> None:
    """A line or a ring."""
    if mark.x is not None and mark.y is not None:
        axes.plot([mark.x], [mark.y], marker="o", markersize=13, markerfacecolor="none", color=ALARM)
    elif mark.x is not None:
        axes.axvline(mark.x, color=ALARM, linestyle=":")
    elif mark.y is not None:
        axes.axhline(mark.y, color=ALARM, linestyle=":")


def _label_mark(axes: "Axes", mark: Mark, panel: Panel, traces: Sequence[Trace]) -> None:
    """Its label, where it hides least; a vertical line's is above the axes, where neither a curve nor the legend is."""
    place: tuple[float, float]
    width, height = _size(panel)
    if mark.x is not None and mark.y is not None:
        corner = corner_of_ring(mark.label, *_on_axes(axes, panel, mark.x, mark.y), traces, width, height)
        place, coordinates, offset = (mark.x, mark.y), ("data", "data"), (9 * corner.across, 7 * corner.up)
    elif mark.x is not None:
        corner = None
        place, coordinates, offset = (mark.x, 1.0), ("data", "axes fraction"), (0, 4)
    else:
        assert mark.y is not None
        level = _on_axes(axes, panel, axes.get_xlim()[0], mark.y)[1]
        corner = corner_of_limit(mark.label, level, traces, (0, width), height)
        place, coordinates = (0.0 if corner.across > 0 else 1.0, mark.y), ("axes fraction", "data")
        offset = 4 * corner.across, 4 * corner.up
    axes.annotate(
        mark.label,
        place,
        xycoords=coordinates,
        xytext=offset,
        textcoords="offset points",
        ha="center" if corner is None else "left" if corner.across > 0 else "right",
        va="top" if corner is not None and corner.up < 0 else "baseline",
        color=ALARM,
        fontsize=11,
        annotation_clip=True,
        bbox={"facecolor": "#040404", "edgecolor": "none", "pad": 0.8},  # no line goes through a label
    )


def _inside(figure: "Figure") -> str:
    """The drawing without its outermost element, which Picture has, in the theme's ink."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    written = io.StringIO()
    FigureCanvasSVG(figure).print_svg(written, metadata={"Date": None})
    body = written.getvalue()
    body = body[body.index("<defs>") : body.rindex("</svg>")]
    body = body[body.index("<g ") :] if "<style" in body[: body.index("<g ")] else body
    body = re.sub(r"font(-family)?: [^;\"]*'[^;\"]*", _sized, body).replace("xlink:href", "href")
    for stand_in, ink in INKS.items():
        body = body.replace(stand_in, ink)
    return _with_own_ids(body)


def _with_own_ids(body: str) -> str:
    """Ids that follow from the drawing alone: a page may hold many, and the same drawing is the same text."""
    names = {identity: f"@{i}" for i, identity in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', body)))}
    body = re.sub(r'(\bid="|#)([\w.-]+)(?=[")])', lambda found: found[1] + names.get(found[2], found[2]), body)
    prefix = f"c{zlib.crc32(body.encode()):08x}-"
    return re.sub(r'(\bid="|#)@', rf"\1{prefix}", body)


def _sized(found: re.Match[str]) -> str:
    """A font without its family: the page has one."""
    size = re.search(r"[\d.]+px", found.group())
    return f"font-size: {size.group()}" if size else ""


def _told(curve: Curve, x: Axis, y: Axis) -> str:
    if not len(curve.xs):
        return f"{curve.name}: nothing"
    ends = [f"{number(curve.ys[i])} at {number(curve.xs[i])}" for i in ((0, -1) if len(curve.xs) > 1 else (0,))]
    return f"{curve.name} ({y.label} against {x.label}): {', '.join(ends)}"

"""Panels over one axis: several quantities, one above the other, and one line through all of them that a hand moves."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course.lab.style import ALARM, WIDTH, number
from course.lab.svg import FAINT, HALO, PAPER, SOFT, Picture, line, nice, rect, tag, text

LEFT, RIGHT, TOP, GAP = 190, 96, 16, 16
Place = Callable[[float], float]
"""Where a value stands, in the picture's units."""


@dataclass(frozen=True)
class Ruler:
    """An axis; its label says the unit. `ticks` are the places with a number."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end, never outside."""
        low, high, here = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(here)
        return (here - low) / (high - low)


@dataclass(frozen=True)
class Series:
    """Points that are joined; None leaves a hole. A dashed one is something to compare with."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: str
    dashed: bool = False
    dots: bool = True

    @property
    def points(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in zip(self.xs, self.ys) if y is not None]


@dataclass(frozen=True)
class Panel:
    """One quantity."""

    name: str
    unit: str
    series: Sequence[Series]
    log: bool = False
    limit: float | None = None
    """A promise: values above it break it."""
    limit_name: str = "promise"
    height: float = 74
    most: float | None = None
    """The axis ends here at the latest: nothing can be larger."""

    def ruler(self) -> Ruler:
        """From what there is to show, to round numbers."""
        values = [y for each in self.series for _, y in each.points] + ([] if self.limit is None else [self.limit])
        top = max(values, default=1.0) or 1.0
        if not self.log:
            high = nice(1.05 * top)
            high = high if self.most is None else min(high, self.most)
            return Ruler(self.unit, 0.0, high, (0.0, high / 2, high))
        low = min((value for value in values if value > 0), default=top / 10)
        first, last = math.floor(math.log10(low)), max(math.ceil(math.log10(top)), math.floor(math.log10(low)) + 1)
        return Ruler(self.unit, 10.0**first, 10.0**last, [10.0**n for n in range(first, last + 1)], log=True)


def draw_panels(
    title: str,
    x: Ruler,
    panels: Sequence[Panel],
    *,
    at: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
    bands: Sequence[tuple[float, float]] = (),
    description: str = "",
) -> Picture:
    """Panels, one below the other.

    Args:
        at: a line through all of them, with the first series' value beside it.
        marks: further lines with a name, at the top; from left to right.
        bands: shaded parts of the axis, from and to.
    """

    def across(value: float) -> float:
        return LEFT + x.share(value) * (WIDTH - LEFT - RIGHT)

    bottom = TOP + sum(panel.height + GAP for panel in panels) - GAP
    body = "".join(
        rect(across(a), TOP, across(b) - across(a), bottom - TOP, fill=FAINT, opacity=0.45) for a, b in bands
    )
    for tick in x.ticks:
        body += line(across(tick), TOP, across(tick), bottom, stroke_width=1)
        body += text(across(tick), bottom + 14, f"{tick:g}", size=11, fill=SOFT, text_anchor="middle")
    top = TOP
    for panel in panels:
        body += _panel(panel, top, across, at)
        top += panel.height + GAP
    for i, (place, name) in enumerate(marks):
        crowded = i + 1 < len(marks) and across(marks[i + 1][0]) - across(place) < 7 * len(name) + 12
        left = crowded or x.share(place) > 0.6
        body += line(across(place), TOP, across(place), bottom, stroke=SOFT, stroke_dasharray="2 3", stroke_width=1.5)
        anchor = "end" if left else None
        body += text(across(place) + (-4 if left else 4), TOP - 4, name, size=11, fill=SOFT, text_anchor=anchor)
    if at is not None:
        body += line(across(at), TOP, across(at), bottom, stroke=ALARM, stroke_width=2)
    body += text(LEFT, bottom + 30, x.label, size=11, fill=SOFT)
    return Picture(title, body, bottom + 36, description=description)


def _panel(panel: Panel, top: float, across: Place, at: float | None) -> str:
    ruler = panel.ruler()

    def down(value: float) -> float:
        return top + panel.height * (1 - ruler.share(value))

    body = text(4, top + 14, panel.name, size=12, font_weight="bold") + text(
        4, top + 29, panel.unit, size=11, fill=SOFT
    )
    for tick in ruler.ticks:
        body += line(LEFT, down(tick), WIDTH - RIGHT, down(tick), stroke_width=0.7)
        body += text(LEFT - 6, down(tick) + 4, f"{tick:g}", size=10, fill=SOFT, text_anchor="end")
    if panel.limit is not None:
        y = down(panel.limit)
        body += line(LEFT, y, WIDTH - RIGHT, y, stroke=ALARM, stroke_dasharray="5 3", stroke_width=1.2)
        body += text(WIDTH - RIGHT + 5, y + 4, f"{panel.limit_name} {number(panel.limit)}", size=10, fill=ALARM)
    names = [each for each in panel.series if each.dashed or len(panel.series) > 1]
    for i, each in enumerate(names):
        y = top + 44 + 13 * i
        body += line(
            4, y - 4, 20, y - 4, stroke=each.colour, stroke_width=2, stroke_dasharray="4 3" if each.dashed else None
        )
        body += text(24, y, each.name, size=10.5, fill=SOFT)
    for each in panel.series:
        body += _curve(each, across, down)
    if at is not None and (here := _at(panel.series[0], at)) is not None:
        broken = panel.limit is not None and here > panel.limit
        body += tag("circle", cx=across(at), cy=down(here), r=5.0, fill=ALARM, stroke=PAPER, stroke_width=1.5)
        end = across(at) > WIDTH - RIGHT - 70
        y = max(down(here) - 7, top + 10)
        words = f"{number(here)}{' ✗' if broken else ''}"
        body += text(
            across(at) + (-9 if end else 9),
            y,
            words,
            font_weight="bold",
            size=11,
            text_anchor="end" if end else None,
            **HALO,
        )
    return body


def _curve(series: Series, across: Place, down: Place) -> str:
    drawn = ""
    for known, group in itertools.groupby(zip(series.xs, series.ys), key=lambda point: point[1] is not None):
        if known:
            places = [f"{across(x):.1f} {down(y):.1f}" for x, y in group]
            dash = "5 4" if series.dashed else None
            drawn += tag(
                "path",
                d="M" + "L".join(places),
                fill="none",
                stroke=series.colour,
                stroke_width=2,
                stroke_dasharray=dash,
            )
    if series.dots and not series.dashed:
        for x, y in series.points:
            drawn += tag("circle", cx=across(x), cy=down(y), r=3.0, fill=series.colour)
    return drawn


def _at(series: Series, x: float) -> float | None:
    """The value at the point that is nearest."""
    return min(series.points, key=lambda point: abs(point[0] - x))[1] if series.points else None


def told(panels: Sequence[Panel], x: str) -> str:
    """The panels in words: the ends of every series."""
    found = []
    for panel in panels:
        for each in panel.series:
            if points := each.points:
                (x0, y0), (x1, y1) = points[0], points[-1]
                ends = f"{number(y0)} at {number(x0)}, {number(y1)} at {number(x1)}"
                found.append(f"{panel.name} ({each.name}), {panel.unit} against {x}: {ends}")
    return "; ".join(found) + "."

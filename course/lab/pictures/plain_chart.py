"""The charts of chart.py without matplotlib, which has no wheel for a browser tab: SVG text from the same description.

A curve's name stands above the axes, where it hides nothing.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from course.lab.style import ALARM, COLOURS, WIDTH
from course.lab.svg import HALO, SOFT, Scale, line, short, tag, text

if TYPE_CHECKING:
    from course.lab.pictures.chart import Axis, Curve, Mark, Panel

MARKERS = (
    "M-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0z",
    "M-2.5 -2.5h5v5h-5z",
    "M0 -3L3 2.5H-3z",
    "M0 -3.3L3.3 0L0 3.3L-3.3 0z",
    "M0 3L3 -2.5H-3z",
    "M-1 -3h2v2h2v2h-2v2h-2v-2h-2v-2h2z",
)
"""Circle, square, triangle, diamond, triangle downwards, plus; around the point."""
DASHES = {"line": None, "dashes": "6 3", "points": None}
MOST_MARKERS = 40
"""On one line; where there are more points, some are left unmarked."""
ROW, DIGIT, GAP = 16, 6.2, 8
"""Height of a row of words, about how wide a character of them is, and what's free below a panel."""
MARGIN = 0.05
"""Share of a range that stays free at either end, where the range has no limits of its own."""
MOST_ACROSS = 10
"""Numbers along the x axis."""
AXES = 0.78
"""The axes' share of a panel's height; the rest is for the words around them."""
STRIDE = 4
"""Pixels between the places of a curve that are looked at for whether a label would hide them."""


def drawn_plainly(panels: "Sequence[Panel]", x: "Axis") -> tuple[str, float]:
    """The inside of a picture with charts below each other, over one x axis; and its height."""
    heights = [AXES * panel.height for panel in panels]
    rulers = [AxisTicks.over(panel.y, _seen(panel, "y"), height / 24) for panel, height in zip(panels, heights)]
    along = AxisTicks.over(x, [value for panel in panels for value in _seen(panel, "x")], MOST_ACROSS)
    left = 26 + DIGIT * max(len(words) for ruler in rulers for _, words in ruler.ticks)
    body, top = "", 0.0
    for i, (panel, ruler, height) in enumerate(zip(panels, rulers, heights)):
        above, rows = _above(panel, left, has_legend(panels, i))
        has_labels = any(mark.label and mark.y is None for mark in panel.marks)
        axes_top = ROW * (rows + has_labels) + 4
        bottom = axes_top + height
        plot = Plot(along.placed(left, WIDTH - 22), ruler.placed(bottom, axes_top), i == len(panels) - 1, f"@clip{i}")
        body += tag("g", above + plot.drawn(panel, x), transform=f"translate(0 {short(top)})")
        top += bottom + GAP
    return body, top + 2 * ROW


def _seen(panel: "Panel", axis: Literal["x", "y"]) -> Iterator[float]:
    """Every value of one axis that a panel has to show."""
    for curve in panel.curves:
        yield from curve.xs if axis == "x" else curve.ys
    for mark in panel.marks:
        if (value := mark.x if axis == "x" else mark.y) is not None:
            yield value


@dataclass(frozen=True)
class AxisTicks:
    """An axis with its ends and its numbers; on a logarithmic one, `low`, `high` and ticks are logarithms."""

    low: float
    high: float
    is_log: bool
    ticks: Sequence[tuple[float, str]]

    @classmethod
    def over(cls, axis: "Axis", values: Iterable[float], most: float) -> "AxisTicks":
        """Over all these values, unless the axis has limits of its own.

        Args:
            most: numbers that there's room for.
        """
        shown = [float(value) for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
        if axis.names:
            shown += [0, len(axis.names) - 1]
        if axis.log:
            shown = list(map(math.log10, shown))
        low, high = min(shown, default=0.0), max(shown, default=1.0)
        free = MARGIN * (high - low) or MARGIN * abs(high) or 1.0
        low = low - free if axis.low is None else _logged(axis.low, axis.log)
        high = high + free if axis.high is None else _logged(axis.high, axis.log)
        high = high if high > low else low + 1.0
        ticks = _log_ticks(low, high, most) if axis.log else _ticks(low, high, most)
        if axis.whole:
            ticks = [(place, words) for place, words in ticks if place == round(place)]
        ticks = list(enumerate(axis.names)) or ticks
        return cls(low, high, axis.log, [(place, words) for place, words in ticks if low <= place <= high])

    def placed(self, start: float, end: float) -> "Placed":
        return Placed(self, Scale(self.low, self.high, start, end))


def _logged(value: float, is_log: bool) -> float:
    return math.log10(value) if is_log else value


def _ticks(low: float, high: float, most: float) -> list[tuple[float, str]]:
    return [(tick, f"{tick + 0.0:.6g}") for tick in Scale(low, high, 0, 1).ticks(max(round(most), 2))]


def _log_ticks(low: float, high: float, most: float) -> list[tuple[float, str]]:
    """At 1, 2 and 5 of each power of ten, or at powers alone; over a range without two of those, as on a plain axis."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    found: list[tuple[float, str]] = []
    for digits in ((1, 2, 5), (1,)):
        values = [digit * 10.0**power for power in powers for digit in digits]
        found = [(math.log10(value), f"{value:g}") for value in values if low <= math.log10(value) <= high]
        if len(found) < 2:
            return [(math.log10(place), words) for place, words in _ticks(10**low, 10**high, most) if place > 0]
        if len(found) <= 1.5 * most:
            return found
    return found[:: math.ceil(len(found) / most)]


@dataclass(frozen=True)
class Placed:
    """A ruler somewhere in a picture."""

    ruler: AxisTicks
    scale: Scale

    def __call__(self, value: float) -> float | None:
        """Where a value stands; None = nowhere: it's no number, or none that has a logarithm."""
        if not math.isfinite(value) or (self.ruler.is_log and value <= 0):
            return None
        return self.scale(_logged(float(value), self.ruler.is_log))

    @property
    def ends(self) -> tuple[float, float]:
        return self.scale.start, self.scale.end


@dataclass(frozen=True)
class Plot:
    """One pair of axes."""

    x: Placed
    y: Placed
    has_numbers_below: bool
    clip: str
    """Names the shape that nothing is drawn outside of."""

    def drawn(self, panel: "Panel", x: "Axis") -> str:
        drawn = self._axes("" if is_long(panel) else panel.y.label, x.label)
        (left, right), (bottom, top) = self.x.ends, self.y.ends
        box = tag("path", d=f"M{short(left)} {short(top)}H{short(right)}V{short(bottom)}H{short(left)}z")
        curves = "".join(self._curve(curve, look_of(i, curve)) for i, curve in enumerate(panel.curves))
        drawn += tag("clipPath", box, id=self.clip) + tag("g", curves, clip_path=f"url(#{self.clip})")
        traces = [self._trace(curve) for curve in panel.curves]
        return drawn + "".join(self._mark(mark, traces) for mark in panel.marks)

    def _axes(self, y_label: str, x_label: str) -> str:
        (left, right), (bottom, top) = self.x.ends, self.y.ends
        drawn = ""
        for place, words in self.y.ruler.ticks:
            y = self.y.scale(place)
            drawn += line(left, y, right, y, stroke_width=0.7)
            drawn += text(left - 6, y + 4, words, size=11, fill=SOFT, text_anchor="end")
        for place, words in self.x.ruler.ticks:
            x = self.x.scale(place)
            drawn += line(x, top, x, bottom, stroke_width=0.7)
            if self.has_numbers_below:
                drawn += text(x, bottom + 14, words, size=11, fill=SOFT, text_anchor="middle")
        drawn += tag("path", d=f"M{short(left)} {short(top)}V{short(bottom)}H{short(right)}", fill="none", stroke=SOFT)
        if y_label:
            middle = (top + bottom) / 2
            turned = {"transform": f"rotate(-90 11 {short(middle)})", "text_anchor": "middle"}
            drawn += text(11, middle, y_label, size=11, fill=SOFT, **turned)
        if self.has_numbers_below:
            drawn += text((left + right) / 2, bottom + 30, x_label, size=11, fill=SOFT, text_anchor="middle")
        return drawn

    def _trace(self, curve: "Curve") -> "Trace":
        """Where it is drawn, with y upwards."""
        points = [(self.x(x), self.y(y)) for x, y in zip(curve.xs, curve.ys)]
        return trace([(x, -y) for x, y in points if x is not None and y is not None], curve.style != "points")

    def _curve(self, curve: "Curve", look: "Look") -> str:
        points = [(self.x(x), self.y(y)) for x, y in zip(curve.xs, curve.ys)]
        drawn, every = "", 1 if curve.style == "points" else max(len(points) // MOST_MARKERS, 1)
        if curve.style != "points":
            parts = itertools.groupby(points, key=lambda point: None not in point)
            joined = "".join(f"M{'L'.join(map(_pair, part))}" for is_there, part in parts if is_there)
            drawn = tag("path", d=joined, fill="none", stroke=look.colour, stroke_width=1.5, stroke_dasharray=look.dash)
        marked = [point for point in points[::every] if None not in point]
        return drawn + (look.markers(marked) if curve.style != "dashes" else "")

    def _mark(self, mark: "Mark", traces: "Sequence[Trace]") -> str:
        """A line or a ring, and a label where it hides least: a vertical line's above the axes."""
        (left, right), (bottom, top) = self.x.ends, self.y.ends
        x = None if mark.x is None else self.x(mark.x)
        y = None if mark.y is None else self.y(mark.y)
        if x is not None and y is not None:
            ring = tag("circle", cx=x, cy=y, r=6.5, fill="none", stroke=ALARM, stroke_width=1.5)
            corner = corner_of_ring(mark.label, x, -y, traces, right, -top)
            return ring + self._label(mark, x + 10 * corner.across, y - 7 * corner.up, corner)
        ink = {"stroke": ALARM, "stroke_dasharray": "2 3", "stroke_width": 1.5}
        if x is not None and left <= x <= right:
            half = DIGIT * len(mark.label) / 2
            words = text(
                min(max(x, half), WIDTH - half), top - 5, mark.label, size=11, fill=ALARM, text_anchor="middle"
            )
            return line(x, top, x, bottom, **ink) + words
        if y is not None and top <= y <= bottom:
            corner = corner_of_limit(mark.label, -y, traces, (left, right), -top)
            end = right - 4 if corner.across < 0 else left + 4
            return line(left, y, right, y, **ink) + self._label(mark, end, y - 5 * corner.up, corner)
        return ""

    def _label(self, mark: "Mark", x: float, y: float, corner: "Corner") -> str:
        side = {"text_anchor": "end"} if corner.across < 0 else {}
        below = 0 if corner.up > 0 else 8
        return text(x, y + below, mark.label, size=11, fill=ALARM, **side, **HALO)


# ---------------------------------------------------------------- where a label hides least

Trace = list[tuple[float, float]]
"""Places on a curve as it's drawn, in pixels, with y upwards."""


@dataclass(frozen=True)
class Corner:
    """Which way a label goes from where it's anchored: to the right (across = 1) or left (−1), up (1) or down (−1)."""

    across: int
    up: int


def trace(points: Sequence[tuple[float, float]], is_joined: bool) -> Trace:
    """A curve's points, and places between them where they are joined."""
    found = list(points[:1])
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        num = max(round(math.hypot(to_x - x, to_y - y) / STRIDE), 1) if is_joined else 1
        found += [(x + (to_x - x) * i / num, y + (to_y - y) * i / num) for i in range(1, num + 1)]
    return found


def corner_of_limit(
    words: str, y: float, traces: Sequence[Trace], across: tuple[float, float], ceiling: float
) -> Corner:
    """Where a horizontal limit's label goes, at either end of it.

    Args:
        across: where the axes begin and end.
        ceiling: where they end at the top; above may be other words.
    """
    ends = {1: across[0] + 4, -1: across[1] - 4}
    anchors = {Corner(side, up): (ends[side], y) for up in (1, -1) for side in (-1, 1)}
    return _clearest(words, anchors, traces, ceiling)


def corner_of_ring(words: str, x: float, y: float, traces: Sequence[Trace], right: float, ceiling: float) -> Corner:
    """Where the label of a ringed point goes, around it; not to its right where the axes end before the label does.

    Args:
        ceiling: as of `corner_of_limit`.
    """
    sides = (-1,) if x > right - DIGIT * len(words) - 10 else (1, -1)
    anchors = {Corner(side, up): (x + 10 * side, y) for up in (1, -1) for side in sides}
    return _clearest(words, anchors, traces, ceiling)


def _clearest(
    words: str, anchors: Mapping[Corner, tuple[float, float]], traces: Sequence[Trace], ceiling: float
) -> Corner:
    """The corner at which a label covers least of the curves, and of those one within the axes; of equals the first."""

    def covered(corner: Corner) -> tuple[int, bool]:
        x, y = anchors[corner]
        low, high = sorted((x, x + corner.across * DIGIT * len(words)))
        bottom, top = sorted((y + 2 * corner.up, y + ROW * corner.up))
        hidden = sum(low <= a <= high and bottom <= b <= top for each in traces for a, b in each)
        return hidden, top > ceiling

    return min(anchors, key=covered)


def _pair(point: tuple[float | None, float | None]) -> str:
    x, y = point
    assert x is not None and y is not None
    return f"{short(x)} {short(y)}"


@dataclass(frozen=True)
class Look:
    """What tells one curve from another."""

    colour: str
    marker: str
    dash: str | None

    def markers(self, points: Sequence[tuple[float | None, float | None]]) -> str:
        """One at each point."""
        places = (f"translate({_pair(point)})" for point in points)
        return "".join(tag("path", d=self.marker, fill=self.colour, transform=place) for place in places)


def look_of(i: int, curve: "Curve") -> Look:
    """The look of the i-th curve of a panel."""
    return Look(curve.colour or COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[curve.style])


def is_long(panel: "Panel") -> bool:
    """Whether its y label is longer than the axis: it stands above it then."""
    return DIGIT * len(panel.y.label) > AXES * panel.height + ROW


def has_legend(panels: "Sequence[Panel]", i: int) -> bool:
    """Whether the i-th panel names its curves: not a single one, which the title names, nor the same ones again."""
    names = [[curve.name for curve in panel.curves] for panel in panels]
    return len(names[i]) > 1 and (i == 0 or names[i] != names[i - 1])


def _above(panel: "Panel", left: float, is_named: bool) -> tuple[str, int]:
    """What stands above a panel's axes, and how many rows that takes: the y label, if it's long, and the names of its
    curves, where they are named."""
    drawn, x, rows = "", left, 0
    if is_long(panel):
        drawn, rows = text(4, ROW - 4, f"↓ {panel.y.label}", size=11, fill=SOFT), 1
    if not is_named:
        return drawn, rows
    rows += 1
    for i, curve in enumerate(panel.curves):
        width = 30 + DIGIT * len(curve.name)
        if x > left and x + width > WIDTH:
            x, rows = left, rows + 1
        look, y = look_of(i, curve), ROW * rows - 4
        if curve.style != "points":
            drawn += line(x, y - 4, x + 18, y - 4, stroke=look.colour, stroke_width=1.5, stroke_dasharray=look.dash)
        if curve.style != "dashes":
            drawn += look.markers([(x + 9, y - 4)])
        drawn += text(x + 23, y, curve.name, size=11, fill=SOFT)
        x += width + 12
    return drawn, rows

"""A plane between two logarithmic axes, for pictures in which a thing is a place: lines, dots, and names on them."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from course.lab.style import WIDTH
from course.lab.svg import HALO, INK, PAPER, SOFT, line, tag, text

TICKS = (1, 2, 5)


@dataclass(frozen=True)
class LogAxis:
    """One axis. Its label says the unit."""

    label: str
    low: float
    high: float

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Powers of ten; with 2 and 5 between them where the axis is short."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = TICKS if math.log10(self.high / self.low) < 2.6 else (1,)
        every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        inside = [tick for tick in every if self.low * 0.999 <= tick <= self.high * 1.001]
        return inside[:: max(1, len(inside) // 9)]


@dataclass(frozen=True)
class Plane:
    """Draws in the body of a Picture; every method returns SVG."""

    x: LogAxis
    y: LogAxis
    height: float = 300
    left: float = 78
    right: float = 18
    top: float = 10
    bottom: float = 44
    names: list[tuple[float, float, float, float]] = field(default_factory=list, compare=False)
    """Boxes that names already fill: the next one keeps out of them."""
    inked: list[tuple[float, float]] = field(default_factory=list, compare=False)
    """Places on lines that were drawn: a name keeps off them, if it can."""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is, in the picture's units."""
        across = self.left + self.x.share(x) * (WIDTH - self.left - self.right)
        return across, self.height - self.bottom - self.y.share(y) * (self.height - self.top - self.bottom)

    def frame(self) -> str:
        """Grid, numbers and labels."""
        drawn = ""
        low, high = self.height - self.bottom, self.top
        for tick in self.x.ticks():
            place, _ = self.at(tick, self.y.low)
            drawn += line(place, low, place, high)
            drawn += text(place, low + 15, written(tick), size=11, fill=SOFT, text_anchor="middle")
        for tick in self.y.ticks():
            _, place = self.at(self.x.low, tick)
            drawn += line(self.left, place, WIDTH - self.right, place)
            drawn += text(self.left - 6, place + 4, written(tick), size=11, fill=SOFT, text_anchor="end")
        middle = (low + high) / 2
        drawn += text((self.left + WIDTH - self.right) / 2, low + 34, self.x.label, fill=SOFT, text_anchor="middle")
        turned = {"text_anchor": "middle", "transform": f"rotate(-90 16 {middle:.0f})"}
        return drawn + text(16, middle, self.y.label, fill=SOFT, **turned)

    def path(self, points: Sequence[tuple[float, float]], **attributes: object) -> str:
        """Straight lines through points."""
        places = [self.at(x, y) for x, y in points]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            self.inked.extend((x0 + (x1 - x0) * i / 60, y0 + (y1 - y0) * i / 60) for i in range(61))
        drawn = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        return tag("path", d=drawn, **{"fill": "none", "stroke": SOFT, "stroke_width": 2, **attributes})

    def area(self, points: Sequence[tuple[float, float]], **attributes: object) -> str:
        drawn = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points)) + "z"
        return tag("path", d=drawn, **attributes)

    def dot(self, x: float, y: float, colour: str, *, radius: float = 5, hollow: bool = False) -> str:
        across, down = self.at(x, y)
        look = {"fill": PAPER if hollow else colour, "stroke": colour if hollow else PAPER, "stroke_width": 1.5}
        return tag("circle", cx=across, cy=down, r=radius, **look)

    def name(self, x: float, y: float, words: str, *, size: float = 11, fill: str = INK, **attributes: object) -> str:
        """Words beside a point: right of it, or wherever nothing stands yet."""
        across, down = self.at(x, y)
        wide, tall = 0.56 * size * len(words), size + 2
        left, middle = -8 - wide, -wide / 2
        places = ((8, 4), (8, 16), (8, -9), (left, 4), (left, -9), (middle, -12), (middle, 21), (middle, 46))
        boxes = [(across + dx, down + dy - size, wide, tall) for dx, dy in places]
        box = next(filter(self._is_free, boxes), boxes[1])
        self.names.append(box)
        return text(box[0], box[1] + size, words, size=size, fill=fill, **{**HALO, **attributes})

    def _is_free(self, box: tuple[float, float, float, float]) -> bool:
        x, y, wide, tall = box
        inside = x >= 0 and x + wide <= WIDTH
        on_a_line = any(x < a < x + wide and y < b < y + tall for a, b in self.inked)
        return inside and not on_a_line and not any(_overlap(box, other) for other in self.names)

    def angle(self, one: tuple[float, float], other: tuple[float, float]) -> float:
        """Degrees by which words are turned to run along a line."""
        (x0, y0), (x1, y1) = self.at(*one), self.at(*other)
        return math.degrees(math.atan2(y1 - y0, x1 - x0))

    def along(
        self, one: tuple[float, float], other: tuple[float, float], words: str, share: float = 0.5, drop: float = -7
    ) -> str:
        """Words that run along a line: just above it, or below it with a positive `drop`."""
        (x0, y0), (x1, y1) = self.at(*one), self.at(*other)
        x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
        angle, wide = self.angle(one, other), 6.4 * len(words)
        if abs(angle) < 5:
            self.names.append((x - wide / 2, y + drop - 11, wide, 14))
        halo = {**HALO, "text_anchor": "middle"}
        turned = f"translate({x:.1f} {y:.1f}) rotate({angle:.1f})"
        return tag("g", text(0, drop, words, size=11.5, fill=INK, **halo), transform=turned)


def written(value: float) -> str:
    """A tick: 0.2, 50, 20 k, 3 M."""
    for scale, unit in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= scale * 0.999:
            divisor = 1e3 if scale == 1e4 else scale
            return f"{value / divisor:g}{unit}"
    return f"{value:g}"


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] < other[1] + other[3]
        and other[1] < one[1] + one[3]
    )

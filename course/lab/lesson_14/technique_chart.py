"""The table of techniques as a picture: one figure claimed, and one found for each workload."""

import math
from collections.abc import Sequence

from course.lab.display import Html, as_table
from course.lab.lesson_14.techniques import CLAIMED, COPIES, CROWD, LONELY, PAGES, RATIOS, Cell, by_technique, noise
from course.lab.style import ALARM, WIDTH
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, line, rect, tag, text

LEFT, RIGHT, TOP, ROW = 142, 24, 50, 62
LOOK = {
    CROWD: ("#0072B2", "circle"),
    LONELY: ("#E69F00", "square"),
    PAGES: ("#009E73", "up"),
    COPIES: ("#CC79A7", "down"),
}
"""A colour and a shape for each workload."""
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50)


def draw_techniques(cells: Sequence[Cell]) -> Picture:
    """A line a technique: claimed, and measured; times as fast, on a logarithmic scale."""
    factors = [cell.factor for cell in cells] + list(CLAIMED.values())
    low, high = min(0.7, 0.85 * min(factors)), 1.25 * max(factors)

    def place(factor: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(factor / low) / math.log(high / low)

    groups = by_technique(cells)
    bottom = TOP + ROW * len(groups)
    blur = min(noise(cells), high, 1 / low)
    band = rect(place(1 / blur), TOP - 8, place(blur) - place(1 / blur), bottom - TOP + 8, fill=FAINT, opacity=0.45)
    body = _legend() + band
    for tick in TICKS:
        if low <= tick <= high:
            one = tick == 1
            body += line(place(tick), TOP - 8, place(tick), bottom, stroke=SOFT if one else FAINT, stroke_width=1)
            body += text(place(tick), bottom + 14, f"×{tick:g}", size=11, fill=SOFT, text_anchor="middle")
    body += text(place(1) - 6, bottom + 30, "← slower", size=11, fill=SOFT, text_anchor="end")
    body += text(place(1) + 6, bottom + 30, "times as fast → (shaded: this run's noise)", size=11, fill=SOFT)
    for i, (technique, group) in enumerate(groups.items()):
        y = TOP + ROW * i + 26
        body += text(4, y + 4, technique, size=12)
        body += line(place(min(c.factor for c in group)), y, place(max(c.factor for c in group)), y, stroke=SOFT)
        body += _claimed(place(CLAIMED[technique]), y, CLAIMED[technique])
        body += _marks(group, place, y)
    told = "; ".join(
        f"{technique}: claimed {CLAIMED[technique]:g}, here "
        + ", ".join(f"{cell.factor:.2f} with {cell.workload}" for cell in group)
        for technique, group in groups.items()
    )
    return Picture("One technique, four workloads: what is its factor?", body, bottom + 38, description=told + ".")


def _marks(group: Sequence[Cell], place, y: float) -> str:
    """Shapes of one line, with their figures under them where those do not collide."""
    drawn, free = "", -math.inf
    for cell in sorted(group, key=lambda cell: cell.factor):
        x = place(cell.factor)
        drawn += shape(x, y, cell.workload)
        if x - 14 > free:
            drawn += text(x, y + 21, f"×{cell.factor:.1f}", size=10.5, fill=INK, text_anchor="middle")
            free = x + 14
    return drawn


def _claimed(x: float, y: float, factor: float) -> str:
    mark = line(x, y - 15, x, y + 10, stroke=ALARM, stroke_width=2, stroke_dasharray="3 2")
    return mark + text(x + 4, y - 9, f"claimed ×{factor:g}", size=10.5, fill=ALARM)


def shape(x: float, y: float, workload: str) -> str:
    """The mark of a workload, centred."""
    colour, kind = LOOK[workload]
    look = {"fill": colour, "stroke": PAPER, "stroke_width": 1}
    if kind == "circle":
        return tag("circle", cx=x, cy=y, r=6.0, **look)
    corners = {
        "square": ((-5.5, -5.5), (5.5, -5.5), (5.5, 5.5), (-5.5, 5.5)),
        "up": ((0, -7), (7, 5.5), (-7, 5.5)),
        "down": ((0, 7), (7, -5.5), (-7, -5.5)),
    }[kind]
    return tag("polygon", points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners), **look)


def _legend() -> str:
    body, x = "", float(LEFT)
    for workload in LOOK:
        body += shape(x + 6, 10, workload) + text(x + 17, 14, workload, size=11, fill=SOFT)
        x += 34 + 6.2 * len(workload)
    return body


def techniques_table(cells: Sequence[Cell]) -> Html:
    """The same in figures, and what each figure is a ratio of."""
    groups = by_technique(cells)
    names = [cell.workload for cell in next(iter(groups.values()))]
    rows = [
        (technique, f"{CLAIMED[technique]:g}", *(f"{cell.factor:.2f}" for cell in group), RATIOS[technique])
        for technique, group in groups.items()
    ]
    return as_table(("technique", "claimed", *names, "the ratio here"), rows)

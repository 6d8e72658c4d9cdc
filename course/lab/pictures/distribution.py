"""How are the two numbers spread? TTFT, a dot a request; ITL, a dot a gap; with their percentiles."""

from collections.abc import Sequence

from course.lab.run import Run, percentile
from course.lab.style import PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, PAPER, SOFT, Picture, Scale, boxes, line, nice, text

LEFT, RIGHT = 104, 32
NARROW = 500
QUANTILES = (50, 95, 99)


def draw_distributions(run: Run, ghost: Run | None = None) -> Picture:
    """Dot plots of TTFT and ITL. Dashed ticks: the same percentile in the previous run."""
    ghost = ghost if run.same_workload(ghost) else None
    body = strip(34, "TTFT", run.ttft, ghost.ttft if ghost else (), PHASE_COLOURS["first_token"], "request")
    body += strip(146, "ITL", run.itl, ghost.itl if ghost else (), PHASE_COLOURS["decode"], "gap")
    title = "How long until the first token, and how long between tokens?"
    return Picture(title, body, 222, NARROW, description=f"TTFT {spread(run.ttft)}. ITL {spread(run.itl)}.")


def spread(values: Sequence[float]) -> str:
    """'p50 12 ms, p95 40 ms, p99 51 ms (n = 96)'."""
    if not len(values):
        return "no values yet"
    return ", ".join(f"p{q} {seconds(percentile(values, q))}" for q in _told(values)) + f" (n = {len(values)})"


def _told(values: Sequence[float]) -> list[int]:
    """The percentiles that so many values have: the p99 of a handful is just the slowest."""
    return [q for q in QUANTILES if len(values) >= 100 / (100 - q)]


def strip(
    y: float,
    name: str,
    values: Sequence[float],
    before: Sequence[float],
    colour: str,
    what: str,
    high: float | None = None,
) -> str:
    """One dot plot between y and y + 96: equal values stack up, percentiles stand as labelled lines."""
    base = y + 58
    high = high or nice(max([*values, *before, 1e-3]))
    scale = Scale(0, high, LEFT, NARROW - RIGHT)
    body = text(LEFT - 10, base - 22, name, size=13, text_anchor="end", font_weight="bold")
    body += text(
        LEFT - 10, base - 6, f"{len(values)} {what}{'s' * (len(values) != 1)}", size=11, fill=SOFT, text_anchor="end"
    )
    body += line(LEFT, base, scale.end, base, stroke=SOFT)
    for tick in scale.ticks(5):
        body += line(scale(tick), base, scale(tick), base + 4, stroke=SOFT)
        body += text(scale(tick), base + 17, seconds(tick), size=11, fill=SOFT, text_anchor="middle")
    body += _dots(values, scale, base, colour)
    body += _marks(before, scale, base, y, dashed=True) + _marks(values, scale, base, y, dashed=False)
    return body


def _dots(values: Sequence[float], scale: Scale, base: float, colour: str) -> str:
    """Stacked dots, 5 units a column; dots shrink in height when a column would grow too tall."""
    columns: dict[int, int] = {}
    for value in values:
        column = int((scale(value) - LEFT) // 5)
        columns[column] = columns.get(column, 0) + 1
    tall = min(5.0, 44 / max(columns.values(), default=1))
    dots = [
        (LEFT + column * 5 + 0.4, base - 1 - tall * (i + 1), 4.2, tall * 0.86)
        for column, n in columns.items()
        for i in range(n)
    ]
    return boxes(dots, fill=colour)


def _marks(values: Sequence[float], scale: Scale, base: float, y: float, dashed: bool) -> str:
    """Percentile lines, each with its label on a line of its own, so that close ones stay readable."""
    lines = labels = ""
    for i, q in enumerate(_told(values)):
        value = percentile(values, q)
        x = scale(value)
        if dashed:
            lines += line(x, base - 50, x, base, stroke=SOFT, stroke_dasharray="3 3")
            continue
        top = y + 6 - 13 * i
        lines += line(x, top - 8, x, base, stroke=INK, stroke_width=1.2)
        labels += beside(x, top, f"p{q} {seconds(value)}", NARROW)
    return lines + labels


def beside(x: float, y: float, label: str, width: float = WIDTH) -> str:
    """A label to the right of x, or to its left near the right edge; it covers lines that cross it."""
    side = {"text_anchor": "end"} if x + 4 + 6.2 * len(label) > width else {}
    return text(x - 4 if side else x + 4, y, label, size=11, stroke=PAPER, stroke_width=3, paint_order="stroke", **side)

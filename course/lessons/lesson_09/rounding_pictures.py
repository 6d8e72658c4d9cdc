"""A row of weights over its grid lines: move the bits, the group, the outlier, and watch the weights being moved."""

from torch import Tensor

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices
from course.lab.style import ALARM, COLOURS, WIDTH, number
from course.lab.svg import FAINT, INK, SOFT, Picture, Scale, boxes, line, rect, tag, text
from course.lessons.lesson_09.rounding import BITS, GROUPS, Matrix, bits_per_weight, error, grids, rounded

SHOWN = 128
"""Inputs of the row that are drawn: those around the largest weight."""
LEFT, RIGHT, TOP, TALL = 62, 12, 22, 230
GRID, MOVED = COLOURS[0], ALARM
FINEST = 2.6
"""Grid lines closer than so many units are drawn as a tint."""
KINDS = ("as it came", "never rounded before")
OUTLIERS = (1, 2, 4, 8)


def rounding_lab(matrix: Matrix) -> Explorer:
    """Bits, group size, an outlier, and whether the weights had been rounded before."""
    by_kind = dict(zip(KINDS, (matrix, matrix.shaken())))
    return Explorer(
        lambda bits, group, outlier, kind: draw_row(by_kind[kind], bits, group, outlier),
        bits=choices("bits of a weight", BITS, 3),
        group=choices("inputs that share a grid", GROUPS, 64),
        outlier=choices("the largest weight, times", OUTLIERS, 1),
        kind=buttons("weights", KINDS),
    )


def draw_row(matrix: Matrix, bits: int, group: int | str, outlier: int = 1) -> Picture:
    """One row of a matrix, on the grids of its groups.

    Args:
        outlier: the row's largest weight is multiplied by this first.
    """
    row, first, shown = _stretched(matrix, outlier)
    moved = rounded(row, bits, group)
    low, step = (each.flatten().tolist() for each in grids(row, bits, group))
    values, landed = row[first : first + shown].tolist(), moved[first : first + shown].tolist()
    across = Scale(first, first + shown, LEFT, WIDTH - RIGHT)
    ends = [min(values), max(values)]
    for i in _groups_in_sight(first, shown, group, len(row)):
        ends += [low[i], low[i] + step[i] * (2**bits - 1)]
    upwards = Scale(min(ends), max(ends), TOP + TALL, TOP)
    body = text(LEFT, 12, f"violet: lines of the grid ({2**bits} in each group)   ", size=11, fill=SOFT)
    body += text(LEFT + 330, 12, "● a weight   — where it is moved to", size=11, fill=SOFT)
    body += _axis(upwards, "weight")
    for i in _groups_in_sight(first, shown, group, len(row)):
        body += _grid(across, upwards, (low[i], step[i], bits), _extent(i, group, len(row), first, shown))
    wide = across(first + 1) - across(first)
    for i, (value, place) in enumerate(zip(values, landed)):
        x = across(first + i + 0.5)
        body += line(x, upwards(value), x, upwards(place), stroke=MOVED, stroke_width=1.4)
        body += line(x - wide / 2, upwards(place), x + wide / 2, upwards(place), stroke=MOVED, stroke_width=1.6)
        body += tag("circle", cx=x, cy=upwards(value), r=1.9, fill=INK)
    share, whole = error(row, bits, group), error(matrix.weights, bits, group)
    price = bits_per_weight(bits, group, len(row))
    rule = f"{bits} bits, {_named(group)}: {number(price)} bits a weight with its grid."
    found = f"Error: {share:.2%} of this row, {whole:.2%} of the whole matrix {list(matrix.weights.shape)}."
    body += text(WIDTH - RIGHT, TOP + TALL + 20, "input of the row →", size=11, fill=SOFT, text_anchor="end")
    body += text(LEFT, TOP + TALL + 20, rule, size=12)
    body += text(LEFT, TOP + TALL + 37, found, size=12, font_weight="bold")
    return Picture("Where does rounding move each weight?", body, TOP + TALL + 46, description=f"{rule} {found}")


def _stretched(matrix: Matrix, outlier: int) -> tuple[Tensor, int, int]:
    """The row with its largest weight multiplied; the first input that is drawn, and how many are."""
    row = matrix.weights[matrix.widest()].clone()
    largest = int(row.abs().argmax())
    row[largest] *= outlier
    shown = min(SHOWN, len(row))
    return row, min(largest // shown * shown, len(row) - shown), shown


def _groups_in_sight(first: int, shown: int, group: int | str, width: int) -> range:
    size = width if isinstance(group, str) else group
    return range(first // size, -(-(first + shown) // size))


def _extent(i: int, group: int | str, width: int, first: int, shown: int) -> tuple[int, int]:
    size = width if isinstance(group, str) else group
    return max(first, i * size), min(first + shown, (i + 1) * size)


def _grid(across: Scale, upwards: Scale, grid: tuple[float, float, int], extent: tuple[int, int]) -> str:
    low, step, bits = grid
    left, right = across(extent[0]) + 1, across(extent[1]) - 1
    top, bottom = upwards(low + step * (2**bits - 1)), upwards(low)
    drawn = rect(left, top, right - left, bottom - top, fill=GRID, fill_opacity=0.07)
    if (bottom - top) / (2**bits - 1) < FINEST:
        words = f"{2**bits} lines: too close to draw"
        drawn += rect(left, top, right - left, bottom - top, fill=GRID, fill_opacity=0.13)
        return drawn + text(
            left + 4, max(top - 3, TOP + 11), words if right - left > 150 else f"{2**bits}", size=10, fill=GRID
        )
    lines = [(left, upwards(low + k * step) - 0.3, right - left, 0.6) for k in range(2**bits)]
    return drawn + boxes(lines, fill=GRID, fill_opacity=0.75)


def _axis(upwards: Scale, label: str) -> str:
    drawn = ""
    for tick in upwards.ticks(5):
        drawn += line(LEFT, upwards(tick), WIDTH - RIGHT, upwards(tick), stroke=FAINT, stroke_width=0.6)
        drawn += text(LEFT - 6, upwards(tick) + 4, f"{tick:.2f}", size=11, fill=SOFT, text_anchor="end")
    turned = {"text_anchor": "middle", "transform": f"rotate(-90 12 {TOP + TALL / 2:.0f})"}
    return drawn + text(12, TOP + TALL / 2, label, size=11, fill=SOFT, **turned)


def _named(group: int | str) -> str:
    return f"one grid for the {group}" if isinstance(group, str) else f"groups of {group}"


def errors_table(matrix: Matrix) -> Html:
    """The error of the whole matrix, by bits and group; as it came, and as if it had never been rounded."""
    fresh, width = matrix.shaken(), matrix.weights.shape[1]
    rows = []
    for bits in BITS:
        for group in GROUPS[:-1] if bits < 8 else GROUPS[-1:]:
            errors = (f"{error(each.weights, bits, group):.2%}" for each in (matrix, fresh))
            rows.append((f"{bits} bits, {_named(group)}", number(bits_per_weight(bits, group, width)), *errors))
    return as_table(("grid", "bits a weight, in all", *(f"error, {kind}" for kind in KINDS)), rows)

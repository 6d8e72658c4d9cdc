"""All claims in one picture: a tile each, filled as far as the claim has held."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.style import ALARM, PHASE_LABELS, WIDTH
from course.lab.svg import INK, PAPER, SOFT, Picture, line, rect, tag, text
from course.lessons.lesson_14.records import FAILED, KINDS, UNMEASURED
from course.lessons.lesson_14.rows import Row

GROUPS: dict[str, Callable[[Row], Sequence[str]]] = {
    "source": lambda row: (row.entry.source_name,),
    "phase": lambda row: tuple(PHASE_LABELS[phase] for phase in row.entry.phases),
    "lesson": lambda row: (f"lesson {row.entry.lesson}",),
}
"""What a line of tiles has in common. A claim about two phases is in both lines."""
LEFT, TILE, STEP = 92, 24, 27
FOOT = 8
PER_LINE = (WIDTH - LEFT) // STEP


def draw_map(rows: Sequence[Row], group: str = "source", lit: Sequence[str] | None = None) -> Picture:
    """Tiles in lines by `group`.

    Args:
        group: one of GROUPS.
        lit: ids of claims that pass the filters; the others are faint. None = all.
    """
    lines = _lines(rows, group)
    body, y = _legend(rows), 34.0
    for name, members in lines.items():
        body += text(LEFT - 8, y + 17, name, size=12, text_anchor="end")
        for i, row in enumerate(members):
            x, down = LEFT + STEP * (i % PER_LINE), y + STEP * (i // PER_LINE)
            faint = lit is not None and row.entry.id not in lit
            body += tag("g", tile(x, down, row), opacity=0.18 if faint else None)
        y += STEP * -(-len(members) // PER_LINE) + 5
    told = "; ".join(f"{name}: {_told(members)}" for name, members in lines.items())
    measured = sum(row.kind != UNMEASURED for row in rows)
    title = f"What became of {len(rows)} claims? {measured} measured"
    return Picture(title, body, y + 2, description=told + ".")


def tile(x: float, y: float, row: Row, named: bool = True) -> str:
    """One claim: full = it holds, a foot = under a condition, a cross = wrong, hollow = not shown, dashed = open."""
    fill = INK if row.kind == "holds" else PAPER
    dash = "3 3" if row.kind == UNMEASURED else None
    edge = ALARM if row.kind in ("wrong", FAILED) else SOFT if row.kind == UNMEASURED else INK
    drawn = rect(x, y, TILE, TILE, rx=4, fill=fill, stroke=edge, stroke_width=1.4, stroke_dasharray=dash)
    if row.kind == "holds only when":
        drawn += rect(x, y + TILE - FOOT, TILE, FOOT, fill=INK, rx=3)
    if row.kind == "wrong":
        left, low, high = x + TILE / 2 - 3.5, y + TILE - FOOT - 1, y + TILE - 2
        drawn += line(left, low, left + 7, high, stroke=ALARM, stroke_width=1.8)
        drawn += line(left, high, left + 7, low, stroke=ALARM, stroke_width=1.8)
    if row.kind == FAILED:
        drawn += text(x + TILE - 6, y + 10, "!", size=10, fill=ALARM, font_weight="bold")
    up = 4 if row.kind in ("holds only when", "wrong") else 0
    ink = PAPER if row.kind == "holds" else SOFT if row.kind == UNMEASURED else INK
    if not named:
        return drawn
    return drawn + text(x + TILE / 2, y + 16 - up, row.entry.id, size=10, fill=ink, text_anchor="middle")


def _legend(rows: Sequence[Row]) -> str:
    """The kinds that occur, with how many of each. A tile without a name stands for each."""
    body, x = "", float(LEFT)
    for kind in KINDS:
        count = sum(row.kind == kind for row in rows)
        if count:
            sample = next(row for row in rows if row.kind == kind)
            mark = tag("g", tile(0, 0, sample, named=False), transform=f"translate({x:.0f} 2) scale(0.68)")
            body += mark + text(x + 22, 14, f"{kind}: {count}", size=11, fill=SOFT)
            x += 40 + 6.0 * len(f"{kind}: {count}")
    return body


def _lines(rows: Sequence[Row], group: str) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in GROUPS[group](row):
            found.setdefault(name, []).append(row)
    if group == "phase":
        return {name: found[name] for name in PHASE_LABELS.values() if name in found}
    return found if group == "source" else dict(sorted(found.items()))


def _told(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.entry.id} {row.kind}" for row in rows)

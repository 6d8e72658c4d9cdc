"""The map as a picture, the runs behind it as a table, and a button that measures it again."""

from collections.abc import Iterator
from html import escape
from typing import Any

from course.lab import progress
from course.lab.display import Html, as_table, link_to
from course.lab.explorer import Explorer, choices
from course.lab.lab import Lab
from course.lab.phase_map.measure import MapRow, MeasuredPair, PhaseMap, measure
from course.lab.phase_map.techniques import ROWS
from course.lab.style import ALARM, PHASE_LABELS, told_seconds
from course.lab.svg import INK, SOFT, TITLE_HEIGHT, Picture, line, phase_fill, rect, tag, text
from course.lessons.start.contents import Lesson, lessons

COLUMNS = {**PHASE_LABELS, "e2e": "E2E", "worst_gap": "ITL, ms", "in_time": "in SLO, %"}
SCALES = {"worst_gap": 1000, "in_time": 100}
"""Gaps are in milliseconds, shares in percentage points, all else in seconds."""
HELPS, HURTS = "#56B4E9", ALARM
NAME_WIDTH, CELL_WIDTH, ROW_HEIGHT, HEAD = 172.0, 78.0, 27.0, 46.0
HALF = CELL_WIDTH / 2 - 2
MAP_WIDTH = NAME_WIDTH + CELL_WIDTH * len(COLUMNS) + 4
SMALL = 11.0
"""Type in the cells."""
EVERYTHING = "everything"


def label(pair: MeasuredPair, what: str) -> str:
    """What became of a phase: seconds more or less, "−1.3"; "·" for nothing. Gaps are in milliseconds, requests within
    the SLO in percentage points."""
    if pair.effect(what) == "nothing":
        return "·"
    was, now = pair.seconds(what)
    moved = SCALES.get(what, 1) * (now - was)
    size = abs(moved)
    digits = 0 if what == "in_time" or size >= 10 else 1 if size >= 1 else 2
    return f"{moved:+.{digits}f}".replace("-", "−")


LINK = "var(--jp-content-link-color, #0a5ea8)"
"""Names can be clicked."""


def draw_map(found: PhaseMap, before: PhaseMap | None = None) -> Picture:
    """Techniques down, phases across; each cell has two halves, one for each pair of runs.

    Args:
        before: what has changed since then is underlined; rows that were measured since have bold names.
    """
    height = HEAD + ROW_HEIGHT * len(found.rows) + 30
    body, told = _heads(height - 30), []
    for i, row in enumerate(found.rows):
        top = HEAD + ROW_HEIGHT * i
        is_new = before is not None and all(row is not old for old in before.rows)  # a stored row has an `again`, too
        body += text(4, top + 17, row.name, size=12.5, fill=LINK, font_weight="bold" if is_new else None)
        body += line(4, top + ROW_HEIGHT, MAP_WIDTH - 4, top + ROW_HEIGHT, stroke_width=0.6)
        was = {old.name: old for old in (before or found).rows}.get(row.name, row)
        for j, what in enumerate(COLUMNS):
            for k, (pair, old) in enumerate(((row.helps, was.helps), (row.hurts, was.hurts))):
                x = NAME_WIDTH + CELL_WIDTH * j + k * (HALF + 2)
                body += _half(x, top + 3, pair, what, f"{row.name}, {COLUMNS[what]}, {'AB'[k]}")
                if label(pair, what) != label(old, what):
                    body += line(x, top + ROW_HEIGHT - 1, x + HALF, top + ROW_HEIGHT - 1, stroke=INK, stroke_width=2.5)
        told.append(f"{row.name}: {_moved(row.helps)} where it should help; {_moved(row.hurts)} where it may cost")
    body += _legend(height - 10)
    title = "What helps where, and where it hurts?" + (" (bold: measured now; underlined: changed)" if before else "")
    return Picture(title, body, height, width=MAP_WIDTH, description=". ".join(told))


def show_map(found: PhaseMap, before: PhaseMap | None = None) -> Html:
    """The map; a click on a technique opens the lesson that shows it. The mouse is told what ran, and a cell's runs."""
    picture, known = draw_map(found, before), lessons()
    tall = picture.height + TITLE_HEIGHT
    drawn = ""
    for i, row in enumerate(found.rows):
        place = f"top:{(TITLE_HEIGHT + HEAD + ROW_HEIGHT * i) / tall:.2%};height:{ROW_HEIGHT / tall:.2%}"
        told = escape(f"{row.name}: lesson {row.lesson}\nA: {row.helps.words}\nB: {row.hurts.words}")
        where = escape(known[row.lesson].link(row.heading)) if row.lesson in known else "#"
        look = f"position:absolute;left:0;width:{NAME_WIDTH / MAP_WIDTH:.2%};{place}"
        drawn += f'<a href="{where}" title="{told}" aria-label="{told}" style="{look}"></a>'
    look = f"position:relative;min-width:{MAP_WIDTH:.0f}px;max-width:{1.15 * MAP_WIDTH:.0f}px"
    return Html(f'<div style="{look}">{picture.svg()}{drawn}</div>', picture.alternative)


def show_map_folded(found: PhaseMap) -> Html:
    """The map behind a line that opens it; open where lesson 06 has been opened before."""
    shown, known = show_map(found), "06" in progress.FILE.read().lessons
    line = f"The map: {len(found.rows)} techniques, five phases, in seconds"
    return Html(f"<details{' open' * known}><summary><b>{line}</b></summary>{shown.html}</details>", str(shown))


def _heads(bottom: float) -> str:
    drawn = ""
    for j, (what, name) in enumerate(COLUMNS.items()):
        x = NAME_WIDTH + CELL_WIDTH * j
        if what in PHASE_LABELS:
            drawn += rect(x, 2, 2 * HALF + 2, 6, fill=phase_fill(what), rx=2)
        drawn += text(x + HALF + 1, 24, name, size=11, text_anchor="middle", font_weight="bold")
        drawn += text(x + HALF / 2, 39, "A", size=SMALL, fill=SOFT, text_anchor="middle")
        drawn += text(x + HALF * 1.5 + 2, 39, "B", size=SMALL, fill=SOFT, text_anchor="middle")
        if what == "e2e":
            drawn += line(x - 2, 2, x - 2, bottom, stroke=SOFT, stroke_width=1)
    return drawn


def _half(x: float, y: float, pair: MeasuredPair, what: str, name: str) -> str:
    """A filled box helps, an empty one with a thick border hurts, a dot is nothing. The mouse is told both runs.

    Args:
        name: of the cell.
    """
    effect, written = pair.effect(what), label(pair, what)
    middle, height = x + HALF / 2, ROW_HEIGHT - 6
    if effect == "nothing":
        drawn = rect(x, y, HALF, height, fill="none", pointer_events="all")
        drawn += text(middle, y + 14, written, size=12, fill=SOFT, text_anchor="middle")
    elif effect == "helps":
        drawn = rect(x, y, HALF, height, fill=HELPS, rx=3)
        drawn += text(middle, y + 14.5, written, size=SMALL, fill="#111", text_anchor="middle")
    else:
        box = {"stroke": HURTS, "stroke_width": 2, "rx": 3, "pointer_events": "all"}
        drawn = rect(x + 1, y + 1, HALF - 2, height - 2, fill="none", **box)
        drawn += text(middle, y + 14.5, written, size=SMALL, fill=INK, text_anchor="middle")
    was, now = (f"{each:.0%}" if what == "in_time" else told_seconds(each) for each in pair.seconds(what))
    return tag("g", tag("title", escape(f"{name}: {was} without, {now} with it. {pair.words}")) + drawn)


def _legend(y: float) -> str:
    drawn = rect(4, y - 11, 30, 14, fill=HELPS, rx=3) + text(
        19, y, "−1.3", size=SMALL, fill="#111", text_anchor="middle"
    )
    drawn += text(40, y, "helps: seconds less, or more within SLO", size=11.5, fill=SOFT)
    drawn += rect(276, y - 11, 30, 14, fill="none", stroke=HURTS, stroke_width=2, rx=3)
    drawn += text(291, y, "+1.3", size=SMALL, text_anchor="middle") + text(312, y, "hurts", size=11.5, fill=SOFT)
    drawn += text(352, y, "·  nothing", size=11.5, fill=SOFT)
    return drawn + text(
        MAP_WIDTH - 4, y, "A: where it should help   B: where it may cost", size=11.5, fill=SOFT, text_anchor="end"
    )


def _moved(pair: MeasuredPair) -> str:
    moved = [f"{name} {label(pair, what)}" for what, name in COLUMNS.items() if pair.effect(what) != "nothing"]
    return ", ".join(moved) or "nothing moves"


def runs_table(found: PhaseMap) -> Html:
    """For each technique: the lesson that shows it, its field, and the two kinds of traffic."""
    known = lessons()
    rows = [(row.name, row.knob, row.helps.words, row.hurts.words, _shown_in(row, known)) for row in found.rows]
    return as_table(("technique", "field", "A", "B", "lesson"), rows)


def _shown_in(row: MapRow, known: dict[str, Lesson]) -> str | Html:
    lesson = known.get(row.lesson)
    return link_to(lesson.link(row.heading), f"{row.lesson}: {row.heading}") if lesson else row.lesson


def provenance_note(found: PhaseMap) -> Html:
    """Where and when the map was measured, and what the simulated hardware rests on."""
    said = [f"Measured {_when_and_where(found.provenance)}."]
    said += [f"{row.name}: measured {_when_and_where(row.again)}." for row in found.rows if row.again]
    said += [f"{name}: {words}" for name, words in found.provenance["simulated"].items()]
    return Html("".join(f"<p><small>{escape(each)}</small></p>" for each in said), "\n".join(said))


def _when_and_where(kept: dict[str, Any]) -> str:
    on = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    return f"{kept['date']} on {kept['device']} ({on}) by {kept['command']}"


def remeasure(lab: Lab | None = None, found: PhaseMap | None = None) -> Explorer:
    """Choose a technique, or everything, and measure it again, here and now. What was stored stays as it is."""
    before = found or PhaseMap.stored()
    state = {"map": before, "lab": lab}

    def draw(technique: str) -> Iterator[Html]:
        state["lab"] = state["lab"] or Lab()
        for row in ROWS:
            if technique in (row.name, EVERYTHING):
                state["map"] = state["map"].measured_again([measure(row, state["lab"])])
                yield show_map(state["map"], before)

    names = [EVERYTHING, *(row.name for row in ROWS)]
    return Explorer(draw, button="Measure again", technique=choices("technique", names, "prefix caching"))

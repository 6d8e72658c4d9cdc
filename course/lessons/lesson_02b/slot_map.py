"""Which request runs in which slot? Slots as rows, time left to right."""

import itertools
from collections.abc import Mapping, Sequence

from course.lab.style import ALARM, WIDTH, seconds
from course.lab.svg import HALO, INK, SOFT, Picture, Scale, boxes, legend, line, phase_fill, rect, text, time_axis
from course.lessons.lesson_02.visits import Visit, end_of, queue_length

LEFT, RIGHT = 104, 20
LABEL = 20
"""Narrower boxes get no number."""


def slot_rows(visits: Sequence[Visit], slots: int) -> list[list[Visit]]:
    """Each request in a slot that is free when it is scheduled. Slots have no number in the engine: the lowest is
    taken."""
    rows: list[list[Visit]] = [[] for _ in range(slots)]
    for visit in sorted((v for v in visits if v.scheduled is not None), key=lambda v: (v.scheduled, v.index)):
        free = [row for row in rows if not row or (row[-1].left or 0.0) <= visit.scheduled + 1e-9]
        (free[0] if free else min(rows, key=lambda row: row[-1].left or 0.0)).append(visit)
    return rows


def draw_slot_maps(
    runs: Mapping[str, Sequence[Visit]], slots: int, title: str = "Which request runs in which slot?"
) -> Picture:
    """A panel a run, all on one time axis. Dashed red: a slot is empty while a request waits."""
    span = 1.02 * max(end_of(visits) for visits in runs.values())
    scale, pitch = Scale(0, span, LEFT, WIDTH - RIGHT), 20.0 if slots <= 8 else 11.0
    y, drawn = 44.0, ""
    for name, visits in runs.items():
        drawn += _panel(name, visits, slots, scale, y, pitch)
        y += pitch * slots + 34
    body = legend(LEFT, 12, ("prefill", "decode"))
    body += rect(LEFT + 160, 3, 14, 10, fill="none", stroke=ALARM, stroke_dasharray="3 2")
    body += text(LEFT + 180, 12, "slot empty while a request waits", fill=ALARM)
    body += time_axis(scale, 22, y - 24) + drawn
    found = "; ".join(
        f"{name}: {share_told(visits, slots)}, all done after {seconds(end_of(visits))}"
        for name, visits in runs.items()
    )
    return Picture(title, body, y + 12, description=f"{found}.")


def share_told(visits: Sequence[Visit], slots: int) -> str:
    return f"{empty_slot_share(visits, slots):.0%} of slot time empty while a request waits"


def _panel(name: str, visits: Sequence[Visit], slots: int, scale: Scale, y: float, pitch: float) -> str:
    body = text(LEFT, y - 5, name, size=13, font_weight="bold", **HALO)
    body += text(LEFT + 8 * len(name) + 8, y - 5, share_told(visits, slots), size=11, fill=SOFT, **HALO)
    prefill, decode, labels, empty = [], [], "", []
    for i, row in enumerate(slot_rows(visits, slots)):
        top, tall = y + pitch * i, pitch - 3
        body += text(LEFT - 8, top + tall - 3, f"slot {i + 1}", size=min(11, pitch), fill=SOFT, text_anchor="end")
        for visit in row:
            x, middle, end = (
                scale(m if m is not None else scale.high) for m in (visit.scheduled, visit.first, visit.left)
            )
            prefill.append((x, top, max(middle - x - 0.5, 0.6), tall))
            decode.append((middle, top, max(end - middle - 0.8, 0.4), tall))
            labels += _number(visit.index, x, end, top + tall - 4) if pitch > 12 else ""
        empty += [(scale(a), top + 1, scale(b) - scale(a) - 1, tall - 2) for a, b in _empty(row, visits)]
    body += boxes(prefill, fill=phase_fill("prefill")) + boxes(decode, fill=phase_fill("decode"))
    body += boxes(empty, fill=ALARM, fill_opacity=0.12, stroke=ALARM, stroke_dasharray="3 2")
    end = scale(end_of(visits))
    body += line(end, y - 2, end, y + pitch * slots, stroke=INK, stroke_width=1.2)
    return body + labels


def _number(index: int, x: float, end: float, y: float) -> str:
    if end - x < LABEL:
        return ""
    return text((x + end) / 2, y, f"#{index}", size=11, text_anchor="middle", **HALO)


def _empty(row: Sequence[Visit], visits: Sequence[Visit]) -> list[tuple[float, float]]:
    """Stretches in which this slot is empty and a request waits; a hundredth of the whole is too short to be seen."""
    borders = sorted({m for v in visits for m in (v.arrival, v.scheduled, v.left) if m is not None})
    found: list[tuple[float, float]] = []
    for start, end in itertools.pairwise(borders):
        middle = (start + end) / 2
        if queue_length(visits, middle) and not any(visit.is_running(middle) for visit in row):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
    return [(start, end) for start, end in found if end - start > 0.01 * end_of(visits)]


def empty_slot_share(visits: Sequence[Visit], slots: int) -> float:
    """Of all slot time while a request waited, the share in which the slot was empty."""
    borders = sorted({m for v in visits for m in (v.arrival, v.scheduled, v.left) if m is not None})
    empty = total = 0.0
    for start, end in itertools.pairwise(borders):
        middle = (start + end) / 2
        if queue_length(visits, middle):
            total += slots * (end - start)
            empty += max(slots - sum(v.is_running(middle) for v in visits), 0) * (end - start)
    return empty / total if total else 0.0

"""The queue at one moment, and over time: slots and queued requests as boxes."""

from collections.abc import Mapping, Sequence

from course.lab.style import PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, phase_fill, rect, text, time_axis
from course.lessons.lesson_02.visits import Visit, end_of, longest_queue, mean, queue_length, waits

LEFT, RIGHT = 104, 20
COLUMNS = 60
TALLEST = 14
"""Boxes that a column draws; of a longer queue each box stands for several requests."""
BOX = 9.0
GREY = PHASE_COLOURS["queue"]


def boxed(longest: int) -> int:
    """How many requests each box stands for: 1, 2, 5, 10, ..."""
    return next(n * 10**k for k in range(9) for n in (1, 2, 5) if longest <= TALLEST * n * 10**k)


def queue_over_time(visits: Sequence[Visit], span: float, base: float, each: int, until: float | None = None) -> str:
    """A column a moment, a box for each `each` queued requests."""
    until = span if until is None else until
    scale, drawn = Scale(0, span, LEFT, WIDTH - RIGHT), []
    for column in range(COLUMNS):
        moment = (column + 0.5) / COLUMNS * span
        count = -(-queue_length(visits, moment) // each) if moment <= until else 0
        drawn += [(scale(moment) - BOX / 2, base - BOX * (i + 1), BOX - 1, BOX - 1) for i in range(count)]
    return boxes(drawn, fill=GREY)


def draw_queues(runs: Mapping[str, Sequence[Visit]], title: str = "How long is the queue?") -> Picture:
    """The queue over time, a panel a run, all on the same scales."""
    span = 1.02 * max(end_of(visits) for visits in runs.values())
    each, y, body = boxed(max(longest_queue(visits) for visits in runs.values())), 10.0, ""
    for name, visits in runs.items():
        base = y + BOX * max(-(-longest_queue(visits) // each), 4) + 8
        body += queue_over_time(visits, span, base, each) + line(LEFT, base, WIDTH - RIGHT, base, stroke=SOFT)
        body += text(LEFT - 10, base - 20, name, size=13, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, base - 6, f"wait {seconds(mean(waits(visits)))}", size=11, fill=SOFT, text_anchor="end")
        y = base + 12
    body = time_axis(Scale(0, span, LEFT, WIDTH - RIGHT), 6, y - 10) + body
    body += text(WIDTH - RIGHT, y + 18, _key(each), size=11, fill=SOFT, text_anchor="end")
    return Picture(title, body, y + 26, description="; ".join(f"{n}: {told(v)}" for n, v in runs.items()) + ".")


def _key(each: int) -> str:
    return "each box is one queued request" if each == 1 else f"each box is {each} queued requests"


def told(visits: Sequence[Visit]) -> str:
    """A run's queue in words."""
    return f"mean wait {seconds(mean(waits(visits)))}, longest queue {longest_queue(visits)}"


def draw_server(
    visits: Sequence[Visit], now: float, slots: int, span: float, title: str, *, whole: bool = False
) -> Picture:
    """The server at one moment, slots and queue; under it the queue over time, up to then or of the `whole` run."""
    running = sorted((v for v in visits if v.is_running(now)), key=lambda visit: visit.scheduled)
    waiting = sum(visit.is_waiting(now) for visit in visits)
    prefill = [v.first is None or now < v.first for v in running]
    body = draw_slots(LEFT, 6, prefill, slots) + draw_waiting(LEFT, 58, waiting, 44)
    for y, words in ((24, f"{len(running)} of {slots} slots"), (72, f"queue: {waiting}")):
        body += text(LEFT - 10, y, words, size=12, text_anchor="end", font_weight="bold")
    each = boxed(max(longest_queue(visits), 1))
    base = 96 + BOX * max(-(-longest_queue(visits) // each), 3)
    scale = Scale(0, span, LEFT, WIDTH - RIGHT)
    body += time_axis(scale, 88, base) + queue_over_time(visits, span, base, each, until=span if whole else now)
    body += line(LEFT, base, WIDTH - RIGHT, base, stroke=SOFT)
    body += line(scale(now), 84, scale(now), base, stroke=INK, stroke_width=1.2, stroke_dasharray="2 2")
    body += text(LEFT - 10, base - 6, "queue over time", size=11, fill=SOFT, text_anchor="end")
    body += text(WIDTH - RIGHT, base + 28, _key(each), size=11, fill=SOFT, text_anchor="end")
    here = f"At {seconds(now)}: {len(running)} of {slots} slots taken, {waiting} queued."
    return Picture(title, body, base + 36, description=f"{here} In all, {told(visits)}.")


def draw_slots(x: float, y: float, in_prefill: Sequence[bool], slots: int) -> str:
    """A box for each slot, filled by the phase of the request that runs in it."""
    body = ""
    for i in range(slots):
        body += rect(x + 28 * i, y, 24, 26, fill="none", stroke=SOFT, rx=3)
        if i < len(in_prefill):
            fill = phase_fill("prefill" if in_prefill[i] else "decode")
            body += rect(x + 28 * i + 3, y + 3, 18, 20, fill=fill, rx=2)
    return body


def draw_waiting(x: float, y: float, waiting: int, room: int) -> str:
    """The queue, the next to be served on the left; what finds no room is counted."""
    shown = min(waiting, room)
    body = boxes([(x + 13 * i, y, 11, 18) for i in range(shown)], fill=GREY)
    return body + (text(x + 13 * shown + 4, y + 14, f"+{waiting - shown}") if waiting > shown else "")

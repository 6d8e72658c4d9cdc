"""Who stands in line? Waiting requests as people: at one moment, and over time."""

from collections.abc import Mapping, Sequence

from course.lab.lesson_02.visits import Visit, end_of, line_length, longest_line, mean, waits
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, tag, text, time_axis

LEFT, RIGHT = 104, 20
COLUMNS = 46
TALLEST = 14
"""People that a column draws; in a longer line each drawn one stands for several."""
PERSON = 11.0


def person(x: float, base: float, fill: str, size: float = PERSON) -> str:
    """Somebody who stands at x with their feet at `base`: a head over a coat."""
    head = tag("circle", cx=x, cy=base - 0.82 * size, r=0.17 * size, fill=fill)
    coat = (
        f"M{x - 0.26 * size:.1f} {base - 0.6:.1f}v{-0.34 * size:.1f}a{0.26 * size:.1f} {0.26 * size:.1f} 0 0 1 "
        f"{0.52 * size:.1f} 0v{0.34 * size:.1f}z"
    )
    return head + tag("path", d=coat, fill=fill)


def crowd_scale(longest: int) -> int:
    """How many people each drawn one stands for: 1, 2, 5, 10, ..."""
    return next(n * 10**k for k in range(9) for n in (1, 2, 5) if longest <= TALLEST * n * 10**k)


def crowd(visits: Sequence[Visit], span: float, base: float, each: int, until: float | None = None) -> str:
    """The line over time: a column a moment, a figure a person (or `each` of them). ✕ above: turned away, gave up."""
    until = span if until is None else until
    scale, drawn = Scale(0, span, LEFT, WIDTH - RIGHT), ""
    for column in range(COLUMNS):
        moment = (column + 0.5) / COLUMNS * span
        for i in range(-(-line_length(visits, moment) // each) if moment <= until else 0):
            drawn += person(scale(moment), base - PERSON * i, PHASE_COLOURS["queue"])
    lost = [visit for visit in visits if visit.ending in ("refused", "gave up") and visit.left <= until]
    marks = {round((scale(visit.left) - LEFT) / 8): visit for visit in lost}
    top = base - PERSON * -(-longest_line(visits) // each) - 6
    return drawn + "".join(text(LEFT + 8 * at, top, "✕", size=11, fill=ALARM, text_anchor="middle") for at in marks)


def draw_lines(runs: Mapping[str, Sequence[Visit]], title: str = "How long is the line?") -> Picture:
    """The line over time, a panel a run, all on the same scales."""
    span = 1.02 * max(end_of(visits) for visits in runs.values())
    longest = max(longest_line(visits) for visits in runs.values())
    each, y, body = crowd_scale(longest), 10.0, ""
    for name, visits in runs.items():
        base = y + PERSON * max(-(-longest_line(visits) // each), 3) + 8
        body += crowd(visits, span, base, each) + line(LEFT, base, WIDTH - RIGHT, base, stroke=SOFT)
        body += text(LEFT - 10, base - 20, name, size=13, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, base - 6, f"wait {seconds(mean(waits(visits)))}", size=11, fill=SOFT, text_anchor="end")
        y = base + 12
    body = time_axis(Scale(0, span, LEFT, WIDTH - RIGHT), 6, y - 10) + body
    body += text(WIDTH - RIGHT, y + 18, _key(each), size=11, fill=SOFT, text_anchor="end")
    return Picture(title, body, y + 26, description="; ".join(f"{n}: {told(v)}" for n, v in runs.items()) + ".")


def _key(each: int) -> str:
    return "each figure is one waiting request" if each == 1 else f"each figure is {each} waiting requests"


def told(visits: Sequence[Visit]) -> str:
    """A run's line in words."""
    lost = {ending: sum(visit.ending == ending for visit in visits) for ending in ("refused", "gave up")}
    extra = "".join(f", {count} {ending}" for ending, count in lost.items() if count)
    return f"mean wait {seconds(mean(waits(visits)))}, longest line {longest_line(visits)}{extra}"


def draw_room(
    visits: Sequence[Visit], now: float, seats: int, span: float, title: str, *, whole: bool = False
) -> Picture:
    """The room at one moment, seats and line; under it the line over time, up to then or of the `whole` run."""
    seated = sorted((v for v in visits if v.on_seat(now)), key=lambda visit: visit.seated)
    waiting = [visit for visit in visits if visit.in_line(now)]
    body = _seats(seated, now, seats) + _standing(waiting)
    each = crowd_scale(max(longest_line(visits), 1))
    base = 92 + PERSON * max(-(-longest_line(visits) // each), 3)
    scale = Scale(0, span, LEFT, WIDTH - RIGHT)
    body += time_axis(scale, 84, base) + crowd(visits, span, base, each, until=span if whole else now)
    body += line(LEFT, base, WIDTH - RIGHT, base, stroke=SOFT)
    body += line(scale(now), 80, scale(now), base, stroke=INK, stroke_width=1.2, stroke_dasharray="2 2")
    body += text(LEFT - 10, base - 8, "line over time", size=11, fill=SOFT, text_anchor="end")
    body += text(WIDTH - RIGHT, base + 28, _key(each), size=11, fill=SOFT, text_anchor="end")
    here = f"At {seconds(now)}: {len(seated)} of {seats} seats taken, {len(waiting)} in line."
    found = f"{here} In all, {told(visits)}."
    return Picture(title, body, base + 36, description=found)


def _seats(seated: Sequence[Visit], now: float, seats: int) -> str:
    """Boxes with whoever sits in them, by phase; at most 32 are drawn."""
    shown, per_row = min(seats, 32), 16
    body = text(LEFT - 10, 26, f"{len(seated)} of {seats} seats", size=12, text_anchor="end", font_weight="bold")
    for i in range(shown):
        x, y = LEFT + 24 * (i % per_row), 6 + 26 * (i // per_row)
        body += rect(x, y, 21, 23, fill="none", stroke=SOFT, rx=3)
        taken = i < len(seated) if len(seated) <= shown else True
        if taken:
            visit = seated[i]
            phase = "prefill" if visit.first is None or now < visit.first else "decode"
            body += person(x + 10.5, y + 22, PHASE_COLOURS[phase], 19)
    return body


def _standing(waiting: Sequence[Visit]) -> str:
    """The line at this moment, the next to be served on the left."""
    body = text(LEFT - 10, 76, f"{len(waiting)} in line", size=12, text_anchor="end", font_weight="bold")
    room = 44
    for i in range(min(len(waiting), room)):
        body += person(LEFT + 8 + 13 * i, 80, PHASE_COLOURS["queue"], 17)
    if len(waiting) > room:
        body += text(WIDTH - 4, 76, f"+{len(waiting) - room}", size=12, text_anchor="end")
    return body

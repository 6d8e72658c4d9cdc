"""The wait against the load over thousands of random arrivals, beside the queue that they make."""

from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, number
from course.lab.svg import FAINT, HALO, INK, SOFT, Picture, Scale, boxes, line, tag, text
from course.lessons.lesson_02.queue_pictures import draw_slots, draw_waiting
from course.lessons.lesson_02.theory import crowd, kingman_wait, mean_waits

ARRIVALS = {"like a clock": 0.0, "independent (Poisson)": 1.0, "in bursts": 2.0}
SERVICES = {"all equal": 0.0, "like chats": 1.0}
"""Names on the controls, and the coefficients of variation they stand for."""
GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
COUNT, SEEDS = 4000, 8
HIGHEST = 20.0
"""Service times: the curve has no end, the picture has."""
WINDOW = 400
"""Arrivals of the first run that the queue is drawn over."""
BLUE = "#56B4E9"
X, Y = Scale(0, 1.2, 44, 400), Scale(0, HIGHEST, 236, 14)
RIGHT = 452.0


def draw_curve(load: int, arrivals: str, services: str) -> Picture:
    """One slot at this load in percent: the formula, runs of `COUNT` arrivals, and the queue of one of them."""
    share, cvs = load / 100, (ARRIVALS[arrivals], SERVICES[services])
    found = sorted(mean_waits(share, *cvs, COUNT, SEEDS))
    spread = f"{number(found[0])} to {number(found[-1])}"
    told = f"mean wait {number(kingman_wait(share, *cvs))} by formula, {spread} in {SEEDS} runs" if load < 100 else ""
    told = told or f"no mean exists; after {COUNT:,} arrivals it was {spread} and still growing"
    body = _axes() + _cloud(cvs) + _formula(*cvs) + _here(share, found, *cvs) + _server(share, *cvs)
    description = f"At {load}% load, waits in service times: {told}."
    return Picture(f"How long is the wait at {load}% load?", body, 272, description=description)


def _axes() -> str:
    body = text(X.start, 268, "load, % of capacity", size=11, fill=SOFT)
    body += text(4, 8, "mean wait, service times", size=11, fill=SOFT)
    for tick in (0, 5, 10, 15, 20):
        body += line(X.start, Y(tick), X.end, Y(tick)) + text(38, Y(tick) + 4, f"{tick}", size=11, text_anchor="end")
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        body += text(X(tick), 252, f"{tick:.0%}", size=11, text_anchor="middle")
    body += tag("rect", x=X(1), y=14, width=X.end - X(1), height=222, fill=ALARM, fill_opacity=0.1)
    body += text(X.end, 8, "above 100%: no mean", size=11, fill=SOFT, text_anchor="end")
    for y, words in ((36, "line: formula"), (52, f"dots: {SEEDS} runs of {COUNT:,} arrivals each")):
        body += text(X(0.03), y, words, size=11, fill=SOFT)
    return body


def _cloud(cvs: tuple[float, float]) -> str:
    """Each run of the grid as a dot."""
    dots = [(X(load), wait) for load in GRID for wait in mean_waits(load, *cvs, COUNT, SEEDS) if wait <= HIGHEST]
    return "".join(tag("circle", cx=x, cy=Y(wait), r=2.4, fill=BLUE, fill_opacity=0.8) for x, wait in dots)


def _formula(arrival_cv: float, service_cv: float) -> str:
    points = [(i / 200, kingman_wait(i / 200, arrival_cv, service_cv)) for i in range(200)]
    path = " ".join(f"{X(x):.1f},{Y(y):.1f}" for x, y in points if y <= HIGHEST)
    return tag("polyline", points=path, fill="none", stroke=INK, stroke_width=1.6)


def _here(load: float, found: list[float], arrival_cv: float, service_cv: float) -> str:
    """The chosen load: its runs as a bar from the luckiest to the unluckiest, and the formula's point."""
    x, low, high = X(load), min(found[0], HIGHEST), min(found[-1], HIGHEST)
    body = line(x, 14, x, 236, stroke=ALARM, stroke_width=1.2, stroke_dasharray="3 3")
    body += line(x, Y(low), x, Y(high), stroke=BLUE, stroke_width=6)
    expected = kingman_wait(load, arrival_cv, service_cv)
    return body + (tag("circle", cx=x, cy=Y(expected), r=4.5, fill=ALARM) if expected <= HIGHEST else "")


def _server(load: float, arrival_cv: float, service_cv: float) -> str:
    """Numbers, and slot and queue at the moment when the queue of the window is longest; the queue over time below."""
    arrivals, services, waits = (each[:WINDOW] for each in crowd(load, arrival_cv, service_cv, COUNT, 0))
    starts = [a + w for a, w in zip(arrivals, waits)]
    span = arrivals[-1]
    moments = [span * (i + 0.5) / 120 for i in range(120)]
    lengths = [sum(a <= t < s for a, s in zip(arrivals, starts)) for t in moments]
    busy = [any(s <= t < s + d for s, d in zip(starts, services)) for t in moments]
    at = max(range(120), key=lengths.__getitem__)
    found = mean_waits(load, arrival_cv, service_cv, COUNT, SEEDS)
    expected = kingman_wait(load, arrival_cv, service_cv)
    first = f"by formula: {number(expected)} service times" if load < 1 else f"no mean: after {COUNT:,} arrivals"
    runs = f"{SEEDS} runs of {COUNT:,}: {number(min(found))} to {number(max(found))} service times"
    body = text(RIGHT, 22, first, size=13, font_weight="bold") + text(RIGHT, 40, runs, fill=SOFT)
    for x, words in ((0, "slot"), (44, f"queue: {lengths[at]}")):
        body += text(RIGHT + x, 72, words, size=11, fill=SOFT)
    body += draw_slots(RIGHT, 78, [True] * busy[at], 1) + draw_waiting(RIGHT + 44, 82, lengths[at], 14)
    scale, tall = Scale(0, span, RIGHT, WIDTH - 12), Scale(0, max(max(lengths), 6), 0, 84)
    body += boxes([(scale(t), 236 - tall(n), 2.1, tall(n)) for t, n in zip(moments, lengths) if n],
                  fill=PHASE_COLOURS["queue"])  # fmt: skip
    body += line(RIGHT, 236, WIDTH - 12, 236, stroke=FAINT)
    body += line(scale(moments[at]), 112, scale(moments[at]), 236, stroke=ALARM, stroke_dasharray="3 3")
    body += text(RIGHT, 252, f"queue over {WINDOW} arrivals; dashed: longest", size=11, fill=SOFT, **HALO)
    return body

"""Pictures and tables of lesson 02, some with sliders: the queue, the wait against the load, a live queue."""

from collections.abc import Iterator, Mapping, Sequence

from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.queueing import crowd, kingman_wait, mean_waits
from course.lab.run import Run
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, number, seconds
from course.lab.svg import FAINT, HALO, INK, SOFT, Picture, Scale, boxes, line, phase_fill, rect, tag, text, time_axis
from course.lab.visits import Visit, end_of, longest_queue, mean, queue_length, visits_of, waits
from course.lessons.lesson_02.run import at_load, capacity, expected_wait, load_of, mean_wait

# ---------------------------------------------------------------- the queue

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
    """One column per moment, one box per `each` queued requests."""
    until = span if until is None else until
    scale, drawn = Scale(0, span, LEFT, WIDTH - RIGHT), []
    for column in range(COLUMNS):
        moment = (column + 0.5) / COLUMNS * span
        count = -(-queue_length(visits, moment) // each) if moment <= until else 0
        drawn += [(scale(moment) - BOX / 2, base - BOX * (i + 1), BOX - 1, BOX - 1) for i in range(count)]
    return boxes(drawn, fill=GREY)


def draw_queues(runs: Mapping[str, Sequence[Visit]], title: str = "How long is the queue?") -> Picture:
    """The queue over time, one panel per run.

    Arrivals have the same pattern in all of them, at another pace: each panel runs by its own clock, so that a request
    arrives at the same place in each.
    """
    last = {name: max(visit.arrival for visit in visits) for name, visits in runs.items()}
    beyond = 1.02 * max(end_of(visits) / last[name] for name, visits in runs.items())
    each, y, body = boxed(max(longest_queue(visits) for visits in runs.values())), 10.0, ""
    for name, visits in runs.items():
        span = beyond * last[name]
        ends = Scale(0, span, LEFT, WIDTH - RIGHT)(last[name])
        base = y + BOX * max(-(-longest_queue(visits) // each), 4) + 8
        body += queue_over_time(visits, span, base, each) + line(LEFT, base, WIDTH - RIGHT, base, stroke=SOFT)
        body += text(LEFT - 10, base - 20, name, size=13, text_anchor="end", font_weight="bold")
        body += text(LEFT - 10, base - 6, f"wait {seconds(mean(waits(visits)))}", size=11, fill=SOFT, text_anchor="end")
        body += line(ends, base, ends, base + 5, stroke=SOFT)
        body += text(ends, base + 16, f"last arrival: {seconds(last[name])}", size=11, fill=SOFT, text_anchor="end")
        y = base + 24
    body += text(LEFT, y + 12, "the same arrivals in each row, at its own pace", size=11, fill=SOFT)
    body += text(WIDTH - RIGHT, y + 12, _key(each), size=11, fill=SOFT, text_anchor="end")
    return Picture(title, body, y + 20, description="; ".join(f"{n}: {told(v)}" for n, v in runs.items()) + ".")


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


# ---------------------------------------------------------------- the curve

ARRIVAL_KINDS = {"like a clock": 0.0, "independent (Poisson)": 1.0, "in bursts": 2.0}
SERVICE_KINDS = {"all equal": 0.0, "like chats": 1.0}
"""Names on the controls, and the coefficients of variation they stand for."""
CURVE_GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CURVE_COUNT, CURVE_SEEDS = 4000, 8
HIGHEST = 20.0
"""Service times: the curve has no end, the picture has."""
CURVE_WINDOW = 400
"""Arrivals of the first run that the queue is drawn over."""
BLUE = "#56B4E9"
LOAD_X, WAIT_Y = Scale(0, 1.2, 44, 400), Scale(0, HIGHEST, 236, 14)
SERVER_X = 452.0


def draw_curve(load: int, arrivals: str, services: str) -> Picture:
    """One slot at this load in percent: the formula, runs of `CURVE_COUNT` arrivals, and the queue of one of them."""
    share, cvs = load / 100, (ARRIVAL_KINDS[arrivals], SERVICE_KINDS[services])
    found = sorted(mean_waits(share, *cvs, CURVE_COUNT, CURVE_SEEDS))
    spread = f"{number(found[0])} to {number(found[-1])}"
    told = (
        f"mean wait {number(kingman_wait(share, *cvs))} by formula, {spread} in {CURVE_SEEDS} runs"
        if load < 100
        else ""
    )
    told = told or f"no mean exists; after {CURVE_COUNT:,} arrivals it was {spread} and still growing"
    body = (
        _curve_axes()
        + _curve_cloud(cvs)
        + _curve_formula(*cvs)
        + _curve_here(share, found, *cvs)
        + _curve_server(share, *cvs)
    )
    description = f"At {load}% load, waits in service times: {told}."
    return Picture(f"How long is the wait at {load}% load?", body, 272, description=description)


def _curve_axes() -> str:
    body = text(LOAD_X.start, 268, "load, % of capacity", size=11, fill=SOFT)
    body += text(4, 8, "mean wait, service times", size=11, fill=SOFT)
    for tick in (0, 5, 10, 15, 20):
        body += line(LOAD_X.start, WAIT_Y(tick), LOAD_X.end, WAIT_Y(tick)) + text(
            38, WAIT_Y(tick) + 4, f"{tick}", size=11, text_anchor="end"
        )
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        body += text(LOAD_X(tick), 252, f"{tick:.0%}", size=11, text_anchor="middle")
    body += tag("rect", x=LOAD_X(1), y=14, width=LOAD_X.end - LOAD_X(1), height=222, fill=ALARM, fill_opacity=0.1)
    body += text(LOAD_X.end, 8, "above 100%: no mean", size=11, fill=SOFT, text_anchor="end")
    for y, words in ((36, "line: formula"), (52, f"dots: {CURVE_SEEDS} runs of {CURVE_COUNT:,} arrivals each")):
        body += text(LOAD_X(0.03), y, words, size=11, fill=SOFT)
    return body


def _curve_cloud(cvs: tuple[float, float]) -> str:
    """Each run of the grid as a dot."""
    dots = [
        (LOAD_X(load), wait)
        for load in CURVE_GRID
        for wait in mean_waits(load, *cvs, CURVE_COUNT, CURVE_SEEDS)
        if wait <= HIGHEST
    ]
    return "".join(tag("circle", cx=x, cy=WAIT_Y(wait), r=2.4, fill=BLUE, fill_opacity=0.8) for x, wait in dots)


def _curve_formula(arrival_cv: float, service_cv: float) -> str:
    points = [(i / 200, kingman_wait(i / 200, arrival_cv, service_cv)) for i in range(200)]
    path = " ".join(f"{LOAD_X(x):.1f},{WAIT_Y(y):.1f}" for x, y in points if y <= HIGHEST)
    return tag("polyline", points=path, fill="none", stroke=INK, stroke_width=1.6)


def _curve_here(load: float, found: list[float], arrival_cv: float, service_cv: float) -> str:
    """The chosen load: its runs as a bar from the luckiest to the unluckiest, and the formula's point."""
    x, low, high = LOAD_X(load), min(found[0], HIGHEST), min(found[-1], HIGHEST)
    body = line(x, 14, x, 236, stroke=ALARM, stroke_width=1.2, stroke_dasharray="3 3")
    body += line(x, WAIT_Y(low), x, WAIT_Y(high), stroke=BLUE, stroke_width=6)
    expected = kingman_wait(load, arrival_cv, service_cv)
    return body + (tag("circle", cx=x, cy=WAIT_Y(expected), r=4.5, fill=ALARM) if expected <= HIGHEST else "")


def _curve_server(load: float, arrival_cv: float, service_cv: float) -> str:
    """Numbers, and slot and queue at the moment when the queue of the window is longest; the queue over time below."""
    arrivals, services, waits = (each[:CURVE_WINDOW] for each in crowd(load, arrival_cv, service_cv, CURVE_COUNT, 0))
    starts = [a + w for a, w in zip(arrivals, waits)]
    span = arrivals[-1]
    moments = [span * (i + 0.5) / 120 for i in range(120)]
    lengths = [sum(a <= t < s for a, s in zip(arrivals, starts)) for t in moments]
    busy = [any(s <= t < s + d for s, d in zip(starts, services)) for t in moments]
    at = max(range(120), key=lengths.__getitem__)
    found = mean_waits(load, arrival_cv, service_cv, CURVE_COUNT, CURVE_SEEDS)
    expected = kingman_wait(load, arrival_cv, service_cv)
    first = f"by formula: {number(expected)} service times" if load < 1 else f"no mean: after {CURVE_COUNT:,} arrivals"
    runs = f"{CURVE_SEEDS} runs of {CURVE_COUNT:,}: {number(min(found))} to {number(max(found))} service times"
    body = text(SERVER_X, 22, first, size=13, font_weight="bold") + text(SERVER_X, 40, runs, fill=SOFT)
    for x, words in ((0, "slot"), (44, f"queue: {lengths[at]}")):
        body += text(SERVER_X + x, 72, words, size=11, fill=SOFT)
    body += draw_slots(SERVER_X, 78, [True] * busy[at], 1) + draw_waiting(SERVER_X + 44, 82, lengths[at], 14)
    scale, tall = Scale(0, span, SERVER_X, WIDTH - 12), Scale(0, max(max(lengths), 6), 0, 84)
    body += boxes(
        [(scale(t), 236 - tall(n), 2.1, tall(n)) for t, n in zip(moments, lengths) if n], fill=PHASE_COLOURS["queue"]
    )
    body += line(SERVER_X, 236, WIDTH - 12, 236, stroke=FAINT)
    body += line(scale(moments[at]), 112, scale(moments[at]), 236, stroke=ALARM, stroke_dasharray="3 3")
    body += text(SERVER_X, 252, f"queue over {CURVE_WINDOW} arrivals; dashed: longest", size=11, fill=SOFT, **HALO)
    return body


# ---------------------------------------------------------------- charts and tables


def draw_many_slots(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Picture:
    """Mean wait against load, a curve for each number of slots."""
    drawn = [Curve(f"{n} slots", [100 * x for x, _ in points], [y for _, y in points]) for n, points in curves.items()]
    x, y = Axis("load, % of what that server can do", high=110), Axis("mean wait, seconds", log=True)
    return draw_chart("Do more slots straighten the curve?", drawn, x, y, [Mark("capacity", x=100)])


def draw_overload(waited: Mapping[str, Sequence[tuple[float, float]]]) -> Picture:
    """The wait of each request against the moment it came, a curve for each load."""
    drawn = [Curve(f"load {name}", *zip(*points)) for name, points in waited.items()]
    x, y = Axis("arrived after, seconds"), Axis("mean wait of 20 arrivals, seconds", low=0)
    return draw_chart("Does the wait settle?", drawn, x, y)


SAMPLES = 400


def capacity_note(run: Run) -> Html:
    """What one slot can do here."""
    words = (
        f"One question keeps the slot busy for {seconds(1 / capacity(run))}. So one slot serves "
        f"{number(capacity(run))} questions a second: that's its capacity, a load of 100%."
    )
    return Html(f"<p>{words}</p>", words)


def counted(visits: Sequence[Visit]) -> float:
    """Mean length of the queue, counted at equal intervals."""
    span = end_of(visits)
    return mean([queue_length(visits, (i + 0.5) / SAMPLES * span) for i in range(SAMPLES)])


def little(visits: Sequence[Visit]) -> float:
    """The same from Little's law: arrivals a second x mean wait."""
    return len(visits) / end_of(visits) * mean(waits(visits))


def little_table(runs: Mapping[str, Run]) -> Html:
    """Two ways to the length of the queue, and theory's wait for these very arrivals."""
    return table_by_name(
        "target load",
        runs,
        {
            "arrivals/s (λ)": lambda run: f"{len(visits_of(run)) / end_of(visits_of(run)):.2f}",
            "mean wait (W)": lambda run: seconds(mean(waits(visits_of(run)))),
            "λ·W": lambda run: f"{little(visits_of(run)):.2f}",
            "mean queue, counted": lambda run: f"{counted(visits_of(run)):.2f}",
            "actual load": lambda run: f"{load_of(run):.0%}",
            "wait in service times": lambda run: f"{mean_wait(run):.2f}",
            "theory, same arrivals": lambda run: f"{expected_wait(run):.2f}",
        },
    )


# ---------------------------------------------------------------- with sliders

FRAME_S = 0.25
OFFERED_LOADS = {"50%": 0.5, "80%": 0.8, "95%": 0.95, "110%": 1.1, "150%": 1.5}
SLOT_CHOICES = (1, 2, 4)


class LiveQueue(Explorer):
    """The real engine under a load of your choice, watched as it goes.

    Args:
        per_second: what one slot can serve.
        first: shown before the first run: a run at 80%.
    """

    def __init__(self, lab: Lab, per_second: float, first: Run) -> None:
        self.lab, self.per_second = lab, per_second
        self.run: Run | None = None
        """The last run, when it is over."""
        controls = {
            "load": choices("load on one slot", list(OFFERED_LOADS), "80%"),
            "slots": choices("slots", SLOT_CHOICES),
        }
        super().__init__(self._play, button="Send the requests", **controls)
        self.showing(_at_its_longest(visits_of(first), 1, "80%"))

    def _play(self, load: str, slots: int) -> Iterator[Picture]:
        arrivals = at_load(self.lab, self.per_second, OFFERED_LOADS[load])
        session = self.lab.start(arrivals, self.lab.config(max_num_seqs=slots))
        span = max(arrivals.arrivals[-1].offset, len(arrivals.arrivals) / self.per_second) * 1.1
        while not session.wait(FRAME_S):
            run = session.run()
            now = max(run.snapshot.now - run.start, 0.0)
            yield draw_server(visits_of(run), now, slots, max(span, now), f"How long is the queue? {load}, live")
        self.run = session.run()
        yield _at_its_longest(visits_of(self.run), slots, load)


def _at_its_longest(visits: list[Visit], slots: int, load: str) -> Picture:
    """A run that is over: the server at the moment its queue was longest, the queue over all of it."""
    moment = max((v.arrival for v in visits), key=lambda t: sum(v.is_waiting(t) for v in visits))
    many = "s" * (slots > 1)
    title = f"{load}, {slots} slot{many}: mean wait {seconds(mean(waits(visits)))}; slots and queue where it's longest"
    return draw_server(visits, moment, slots, end_of(visits) * 1.02, title, whole=True)


def wait_curve() -> Explorer:
    """Drag the load through the curve."""
    return Explorer(
        draw_curve,
        load=slider("load, %", 10, 120, 80),
        arrivals=buttons("arrivals come", list(ARRIVAL_KINDS), "independent (Poisson)"),
        services=buttons("service times", list(SERVICE_KINDS)),
    )


def queues(runs: Mapping[str, Run]) -> Picture:
    """The same requests at several loads."""
    return draw_queues(
        {f"load {name}": visits_of(run) for name, run in runs.items()},
        f"{len(next(iter(runs.values())).rows)} questions, one slot: how long is the queue?",
    )

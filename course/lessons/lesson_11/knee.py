"""The knee curve: what a larger max-batch buys, and who pays. The same four panels for this machine and for 70B."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from course.lab.explorer import Explorer, buttons, choices
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_chart, draw_panels
from course.lab.style import number
from course.lab.svg import Picture
from course.lessons.lesson_11 import fleet
from course.simulator.workload.arrivals import AllAtOnce
from minillm.core.brief import brief
from minillm.observe.percentiles import percentile
from minillm.observe.summary import SLO

SLOTS = (8, 16, 24, 32, 48, 64, 96, 128, 256)
PROMPTS = (500, 1500, 4000)
ANSWERS = (150, 600)
LOADS = {f"{load}%": load / 100 for load in (50, 70, 80, 90, 100, 120)}


@dataclass(frozen=True)
class Point:
    """One setting of max_num_seqs, and what came of it. Seconds, and rates per second."""

    slots: int
    throughput: float
    ttft: float
    """p99."""
    tpot: float
    """p99."""
    goodput: float
    in_time: float
    """Share of the requests that met every limit."""
    preemptions: int = 0


@dataclass(frozen=True)
class Sweep:
    """The same traffic, one setting after the other."""

    points: tuple[Point, ...]
    slo: SLO
    rate: float
    """Requests per second that came."""
    room: float | None = None
    """Requests of this traffic whose KV fits at once; None = not known."""

    __repr__ = brief

    @property
    def best(self) -> Point:
        """The smallest setting with the highest goodput, give or take a hundredth."""
        most = max(point.goodput for point in self.points)
        return next(point for point in self.points if point.goodput >= 0.99 * most)

    def at(self, slots: float) -> Point:
        return min(self.points, key=lambda point: abs(point.slots - slots))


def sweep(
    prompt: int = 1500,
    answer: int = 150,
    load: float = 0.8,
    *,
    stack: str = fleet.STACKS[0],
    tp: int = 4,
    slo: SLO = fleet.LIMITS,
    slots: Sequence[int] = SLOTS,
    count: int = 240,
) -> Sweep:
    """Play the same arrivals to 70B under every setting.

    Args:
        load: arrivals as a share of what it can serve with many slots.
    Raises:
        PricingError: the model does not fit on so many GPUs.
    """
    traffic = fleet.asking(prompt, answer)
    rate = load * fleet.capacity(traffic, stack=stack, tp=tp)
    found = []
    for each in slots:
        run = fleet.served(traffic, rate, count, stack=stack, tp=tp, max_num_seqs=each)
        latencies, kept = (run.p("ttft", 99), run.p("tpot", 99)), (run.goodput(slo), run.attainment(slo))
        found.append(Point(each, run.throughput, *latencies, *kept, run.preemptions))
    on = fleet.deployment(stack, tp=tp)
    return Sweep(tuple(found), slo, rate, on.num_kv_blocks * on.block_size / (prompt + answer))


def draw_knee(found: Sweep, at: int, who: str) -> Picture:
    """Four panels over max-batch, with the operating point as a line through them.

    Args:
        who: whose curve it is.
    """
    slots = [point.slots for point in found.points]
    here = found.at(at)
    lines = [Mark("", x=here.slots)]
    if found.room and found.room <= slots[-1]:
        lines.append(Mark("KV full", x=found.room))

    def panel(y: Axis, value: Callable[[Point], float], limit: float | None = None) -> Panel:
        marks = [*lines, Mark(number(value(here)), here.slots, value(here))]
        if limit is not None:
            marks.append(Mark(f"SLO {number(limit)}", y=limit))
        return Panel([Curve(y.label, slots, [value(point) for point in found.points])], y, marks)

    panels = [
        panel(Axis("tokens/s", low=0), lambda point: point.throughput),
        panel(Axis("TTFT p99, s", log=True), lambda point: point.ttft, found.slo.ttft),
        panel(Axis("TPOT p99, s", low=0), lambda point: point.tpot, found.slo.tpot),
        panel(Axis("goodput, 1/s", low=0), lambda point: point.goodput),
    ]
    title = f"{who}, {number(found.rate)} requests/s: max-batch {here.slots} keeps {here.in_time:.0%} within SLO"
    title += f", {here.preemptions} preemptions" if here.preemptions else ""
    return draw_panels(title, panels, Axis("max-batch (max_num_seqs): requests that may run at once", log=True))


def knee_of_70b() -> Explorer:
    """70B with sliders: place the operating point, change the traffic under it."""

    def draw(at: int, prompt: int, answer: int, load: str, gpus: str, stack: str) -> Picture:
        found = sweep(prompt, answer, LOADS[load], stack=stack, tp=int(gpus[0]))
        return draw_knee(found, at, f"70B on {gpus}, {load} load")

    return Explorer(
        draw,
        slow=True,
        at=choices("operating point: max-batch", SLOTS, 24),
        prompt=choices("prompts, tokens (mean)", PROMPTS, 1500),
        answer=choices("answers, tokens (mean)", ANSWERS, 150),
        load=choices("load", list(LOADS), "80%"),
        gpus=buttons("replica", ["4 H100s", "2 H100s"]),
        stack=buttons("serving stack", list(fleet.STACKS)),
    )


@dataclass(frozen=True)
class Crowd:
    """A load test: so many clients, each of whom asks again as soon as it has its answer."""

    clients: int
    throughput: float
    ttft: float
    """p99, seconds."""


def crowds(clients: Sequence[int] = (4, 8, 16, 32, 64, 128), stack: str = fleet.STACKS[0]) -> list[Crowd]:
    """More and more clients in a closed loop, and slots for all of them."""
    found = []
    for each in clients:
        traffic = fleet.asking(1500, 150)
        run = fleet.served(traffic, AllAtOnce(), 5 * each + 40, in_flight=each, stack=stack, max_num_seqs=max(clients))
        found.append(Crowd(each, *_steady(run, each)))
    return found


def _steady(run: fleet.Served, clients: int) -> tuple[float, float]:
    """Throughput and TTFT p99 of a closed loop, after the first rush and before the clients run out."""
    later = slice(clients, None)
    last = float(run.sent.max())
    since = float(run.sent[later].min())
    tokens = float(((run.stamps >= since) & (run.stamps < last)).sum() / max(last - since, 1e-9))
    ttft = run.ttft[later]
    return tokens, percentile(ttft[~np.isnan(ttft)], 99)


def draw_limit_or_load(limit: Sweep, load: Sequence[Crowd]) -> Picture:
    """TTFT p99 against two numbers that are both called batch size."""
    curves = [
        Curve(f"max_num_seqs varies, at {number(limit.rate)} requests/s", [p.slots for p in limit.points],
              [p.ttft for p in limit.points]),
        Curve("the number of clients varies, slots for all", [c.clients for c in load], [c.ttft for c in load]),
    ]  # fmt: skip
    return draw_chart(
        "Two curves called 'TTFT against batch': which way do they bend?",
        curves,
        Axis("requests that may run at once, or clients", log=True),
        Axis("TTFT p99, s", log=True),
        [Mark("SLO", y=limit.slo.ttft)] if limit.slo.ttft else (),
    )

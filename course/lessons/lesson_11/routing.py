"""A small model for easy requests: what a route saves, and what a wrong one costs."""

import functools
from dataclasses import dataclass

import numpy as np

from course.lab import simulated_70b
from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.scale import enough
from course.lab.svg import Picture
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.money import GPUS, dollars, gpu_price
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.requests import make_workload
from minillm.core.brief import brief

SMALL, SMALL_GPUS = "llama-3.1-8b", 1
PROMPT, ANSWER = 1500, 150
RATES = tuple(i / 50 for i in range(26))
"""Misroute rates on the axis: none to half, where a coin would do as well."""
PER = 1000
"""Dollars are for so many requests."""


def cost_of(model: str, gpus: int, price: float) -> float:
    """Dollars for a request, on a replica that is always full."""
    per_second = fleet.capacity(fleet.asking(PROMPT, ANSWER), model=model, tp=gpus)
    return gpus * price / 3600 / per_second


@dataclass(frozen=True)
class Route:
    """Who is easy, how often the router is wrong, and who notices. Shares of 1; dollars for one request."""

    small: float
    large: float
    easy: float = 0.7
    caught: float = 1.0
    """Of the hard requests that the small model got: their answer is found wrong, and asked of the large one."""
    harm: float = 0.0
    """What an uncaught wrong answer costs: a support call, a lost sale, a bug."""

    def routed(self, wrong: float) -> float:
        """Mean dollars for a request when this share is taken for the other kind."""
        to_small = self.easy * (1 - wrong) + (1 - self.easy) * wrong
        to_large = 1 - to_small
        missed = (1 - self.easy) * wrong
        again = missed * self.caught * self.large
        return to_small * self.small + to_large * self.large + again + missed * (1 - self.caught) * self.harm

    @property
    def break_even(self) -> float | None:
        """The misroute rate at which routing stops paying; None = it pays at any up to 1. 0 = it never does."""
        at_zero, at_one = self.routed(0.0) - self.large, self.routed(1.0) - self.large  # linear in between
        if at_zero >= 0:
            return 0.0
        return None if at_one <= 0 else at_zero / (at_zero - at_one)


def draw_routing(easy: float, wrong: float, caught: float, harm: float, price: float) -> Picture:
    """Dollars for 1000 requests against the misroute rate."""
    small, large = cost_of(SMALL, SMALL_GPUS, price), cost_of(fleet.MODEL, GPUS, price)
    route = Route(small, large, easy, caught, harm * large)
    noticed = Route(small, large, easy, 1.0)
    here = route.routed(wrong)
    xs = [100 * rate for rate in RATES]
    curves = [
        Curve("routed", xs, [PER * route.routed(rate) for rate in RATES]),
        Curve("routed, every wrong answer caught", xs, [PER * noticed.routed(rate) for rate in RATES], "dashes"),
        Curve("all to the large model", xs, [PER * large] * len(xs), "dashes"),
    ]
    border = route.break_even
    pays = "at any misroute rate" if border is None else "never" if border == 0 else f"below {border:.0%} misrouted"
    verb = "saves" if here <= large else "adds"
    title = f"{wrong:.0%} misrouted: routing {verb} {abs(1 - here / large):.0%}; it pays {pays}"
    marks = [Mark(f"{dollars(PER * here)}", x=100 * wrong, y=PER * here)]
    if border and border <= RATES[-1]:
        marks.append(Mark("break-even", x=100 * border))
    return draw_chart(
        title,
        curves,
        Axis("misrouted, % of the requests"),
        Axis(f"dollars for {PER} requests", low=0),
        marks,
        description=f"All large {dollars(PER * large)}, small {dollars(PER * small)}, routed {dollars(PER * here)}.",
    )


def routes() -> Explorer:
    """The break-even with sliders."""
    return Explorer(
        draw_routing,
        easy=slider("easy, share of the requests", 0.0, 1.0, 0.7, 0.05),
        wrong=slider("misrouted, share", 0.0, 0.5, 0.1, 0.02),
        caught=slider("wrong answers caught, share", 0.0, 1.0, 0.5, 0.05),
        harm=choices("a wrong answer costs, x a large request", (0, 1, 3, 10, 30, 100, 1000), 30),
        price=slider("dollars for a GPU and hour", 0.5, 12.0, gpu_price(), 0.01),
    )


@dataclass(frozen=True, eq=False)
class Played:
    """Routing, played: E2E and TTFT in seconds, a row a request."""

    e2e: np.ndarray
    ttft: np.ndarray
    twice: np.ndarray
    """Hard requests that the small model was asked first."""

    __repr__ = brief


@functools.lru_cache(maxsize=32)
def play(wrong: float, load: float = 0.9, easy: float = 0.7) -> Played:
    """One large replica, and a small model beside it.

    Args:
        load: as a share of what the large one could do alone.
        wrong: misroute rate; below 0 = no routing at all.
    """
    traffic = fleet.asking(PROMPT, ANSWER)
    rate = load * fleet.capacity(traffic)
    workload = make_workload(traffic, Poisson(rate=rate), num_requests=enough(400, fleet.LEAST))
    small = fleet.deployment(model=SMALL, tp=SMALL_GPUS, max_num_seqs=fleet.SLOTS)
    routing = {"easy_share": easy, "misroute_rate": wrong} if wrong >= 0 else None
    run = simulated_70b.play(fleet.deployment(max_num_seqs=fleet.SLOTS), workload, small, model_routing=routing)
    ended = [r for r in run.records if r.completed]
    # Another model had it first: this one's engine saw it much later than its client sent it.
    again = [r.misrouted and r.replica.startswith("main") and r.timeline.arrival - r.intended > 0.1 for r in ended]
    return Played(np.array([r.e2e() for r in ended]), np.array([r.ttft() for r in ended]), np.array(again, dtype=bool))

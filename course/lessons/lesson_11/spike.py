"""A spike, and five answers: nothing, an autoscaler, admission control, degrading to a small model, a spare."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_panels
from course.lab.run import percentile
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.money import GPUS, dollars, gpu_price
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Ramp, Spikes
from course.simulator.workload.requests import Workload, make_workload
from minillm.core.brief import brief

WINDOW_S = 10.0
"""Of the panels: requests are grouped by when they were sent."""
BASE = 3.0
"""Requests per second before and after: about half of what a replica can do."""
STARTS, ENDS = 60.0, 420.0
MOST_REPLICAS = 4
MAX_OUTSTANDING = 40
"""Requests that a replica may hold at once, with admission control; with as many, it degrades."""
SMALL = "llama-3.1-8b"
DEGRADE = "degrade to a small model, and back"
MEASURES = ("do nothing", "autoscaler", "refuse beyond a limit", DEGRADE, "a spare replica, always on")


@dataclass(frozen=True)
class Spike:
    """What happens."""

    times: float = 4.0
    """So many times the usual rate."""
    length: float = 60.0
    cold: float = 120.0
    """From ordering a replica to its first request, seconds: machine, weights, warm-up."""
    back_at: int = 10
    """Degraded, new requests go to the large model again when it holds no more than so many."""
    gentle: bool = False
    """The rate climbs in a straight line until the end, instead of jumping up and down again."""

    @property
    def workload(self) -> Workload:
        high = BASE * self.times
        if self.gentle:
            arrivals = Ramp(start_rate=BASE, end_rate=high, length_s=ENDS)
        else:
            arrivals = Spikes(rate=BASE, spike_rate=high, start_s=STARTS, length_s=self.length)
        return make_workload(fleet.asking(1500, 150), arrivals, duration_s=ENDS)


@dataclass(frozen=True)
class RequestOutcome:
    """One request."""

    sent: float
    ttft: float | None
    """To the first byte of an answer; None = there was none."""
    small: bool = False
    """The small model answered."""


@dataclass(frozen=True)
class Story:
    """One spike under one measure."""

    spike: Spike
    measure: str
    outcomes: tuple[RequestOutcome, ...]
    up: tuple[tuple[float, int], ...]
    """Moment, replicas of the large model that took requests."""
    gpu_hours: float

    __repr__ = brief

    def windows(self, ends: float = ENDS) -> list[float]:
        return [WINDOW_S * i for i in range(math.ceil(ends / WINDOW_S))]

    def by_window(self) -> list[list[RequestOutcome]]:
        """Requests, by when they were sent."""
        return [[f for f in self.outcomes if start <= f.sent < start + WINDOW_S] for start in self.windows()]

    def rate(self, only_overflow: bool = False) -> list[float]:
        """Requests per second by window; of those that the large model did not answer, if only these are wanted."""
        groups = self.by_window()
        if only_overflow:
            groups = [[f for f in group if f.ttft is None or f.small] for group in groups]
        return [len(group) / WINDOW_S for group in groups]

    def ttft(self, q: float = 99) -> list[float | None]:
        """By window, of answered requests."""
        return [percentile([f.ttft for f in group if f.ttft is not None], q) for group in self.by_window()]

    def share(self, kind: str) -> float:
        """Of all requests: "within SLO", "small" (answered by the small model), "refused"."""
        limit = fleet.LIMITS.ttft
        chosen = {
            "within SLO": lambda f: f.ttft is not None and f.ttft <= limit,
            "small": lambda f: f.small,
            "refused": lambda f: f.ttft is None,
        }[kind]
        return sum(map(chosen, self.outcomes)) / len(self.outcomes)

    @property
    def switches(self) -> int:
        """Between the models, one way or the other."""
        in_order = sorted(self.outcomes, key=lambda each: each.sent)
        return sum(one.small != other.small for one, other in itertools.pairwise(in_order))

    @property
    def back(self) -> float:
        """Seconds from the begin of the spike until p99 of TTFT is within the SLO for good; inf = never here."""
        late = [
            start + WINDOW_S
            for start, value in zip(self.windows(), self.ttft())
            if value is not None and value > fleet.LIMITS.ttft and start >= STARTS
        ]
        if not late:
            return 0.0
        return math.inf if late[-1] >= ENDS else late[-1] - STARTS


@functools.lru_cache(maxsize=64)
def story(spike: Spike, measure: str) -> Story:
    """Play it. Raises ValueError: there is no such measure."""
    if measure not in MEASURES:
        raise ValueError(f"choose one of {', '.join(MEASURES)}")
    on, workload = fleet.deployment(max_num_seqs=256), spike.workload
    settings: dict[str, object] = {"sample_every_s": WINDOW_S, "cold_start_s": spike.cold}
    if measure == "autoscaler":
        settings["autoscaling"] = {
            "target": MAX_OUTSTANDING / 2,
            "max_replicas": MOST_REPLICAS,
            "window_s": 15.0,
            "scale_down_after_s": 60.0,
        }
    elif measure == "a spare replica, always on":
        settings["replicas"] = 2
    elif measure == "refuse beyond a limit":
        settings["shedding"] = {"max_outstanding": MAX_OUTSTANDING}
    elif measure == DEGRADE:
        settings["degrading"] = {"above": MAX_OUTSTANDING, "back_at": spike.back_at}
        settings["small"] = fleet.deployment(model=SMALL, tp=1, max_num_seqs=128)
    run = simulated_70b.play(on, workload, **settings)
    outcomes = [RequestOutcome(r.intended, r.ttft(), (r.replica or "").startswith("small")) for r in run.records]
    gpu_s = sum(report.up_s * (GPUS if report.pool == "main" else 1) for report in run.reports)
    return Story(spike, measure, tuple(outcomes), _up(run), gpu_s / 3600)


def _up(run: FleetRun) -> tuple[tuple[float, int], ...]:
    large = Counter(sample.moment for sample in run.samples if sample.replica.startswith("main"))
    return tuple(sorted(large.items()))


def draw_story(spike: Spike, measure: str) -> Picture:
    """Arrivals, TTFT p99, replicas over time; doing nothing is the dashed ghost."""
    here, ghost = story(spike, measure), story(spike, "do nothing")
    middle = [start + WINDOW_S / 2 for start in here.windows()]
    arrivals = [Curve("all", middle, here.rate())]
    if any(overflow := here.rate(only_overflow=True)):
        arrivals.append(Curve("overflow", middle, overflow))
    ttft = [Curve("this measure", middle, here.ttft())]
    if measure != "do nothing":
        ttft.append(Curve("do nothing", middle, ghost.ttft(), "dashes"))
    replicas = Curve("replicas of the large model", *zip(*here.up))
    ends = [] if spike.gentle else [Mark("", x=STARTS), Mark("", x=min(STARTS + spike.length, ENDS))]
    panels = [
        Panel(arrivals, Axis("requests/s", low=0), ends),
        Panel(ttft, Axis("TTFT p99, s", log=True), [*ends, Mark("SLO", y=fleet.LIMITS.ttft)], height=150),
        Panel([replicas], Axis("replicas", low=0), ends, height=90),
    ]
    again = f"within the SLO again after {seconds(here.back)}"
    if here.back == 0 or math.isinf(here.back):
        again = "never outside the SLO" if here.back == 0 else "not within the SLO again in this picture"
    title = f"{measure}: {again}; {here.share('within SLO'):.0%} within SLO"
    title += f"; {here.switches} switches" if here.switches else ""
    x = Axis(f"time, seconds (windows of {WINDOW_S:.0f} s, by when requests were sent)", low=0, high=ENDS)
    return draw_panels(title, panels, x, description=_told([here, ghost]))


def _told(stories: Sequence[Story]) -> str:
    cost = gpu_price()
    return "; ".join(
        f"{each.measure}: {each.share('within SLO'):.0%} within SLO, {each.share('small'):.0%} by the small model, "
        f"{each.share('refused'):.0%} refused, {dollars(each.gpu_hours * cost)} of GPUs"
        for each in stories
    )


def spikes() -> Explorer:
    """The spike with sliders."""

    return Explorer(
        lambda measure, times, length, cold, back_at, shape: draw_story(
            Spike(float(times), float(length), float(cold), int(back_at), shape == "a climb"), measure
        ),
        slow=True,
        measure=buttons("measure", list(MEASURES), "autoscaler"),
        times=slider("peak load, x the usual", 2, 6, 4),
        length=choices("how long, s", (20, 60, 120, 240), 60),
        cold=choices("cold start, s", (5, 30, 60, 120, 240), 120),
        back_at=choices("degraded: back to the large model at this many open requests", (0, 10, 20, 39), 10),
        shape=buttons("shape", ["a spike", "a climb"]),
    )


def stories(spike: Spike) -> dict[str, Story]:
    """Every measure."""
    return {measure: story(spike, measure) for measure in with_progress(MEASURES, "simulating measures")}

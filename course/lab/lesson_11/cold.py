"""Rare traffic: a replica that sleeps when nobody comes, and one that never sleeps."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course.lab import simulated_70b
from course.lab.explorer import Explorer, choices, slider
from course.lab.lesson_11 import fleet
from course.lab.lesson_11.money import GPUS, HOURS_A_DAY, dollars, gpu_price
from course.lab.lesson_11.panels import Panel, Ruler, Series, draw_panels
from course.lab.progress_bar import with_progress
from course.lab.scale import enough
from course.lab.style import PHASE_COLOURS, number, seconds
from course.lab.svg import Picture
from minillm.simulate.workload.arrivals import Poisson
from minillm.simulate.workload.requests import make_workload

RATES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Requests an hour."""
LOOK_S = 15.0
"""Seconds between two looks of the autoscaler."""
COLD_S = 1.0
"""Who waits so much longer than at a warm replica came while it slept or started."""
COUNT = 160
ALL_RATES = tuple(float(rate) for rate in np.geomspace(RATES[0], RATES[-1], 40))


@dataclass(frozen=True)
class Sleep:
    """Scale to zero, played. Seconds; shares of 1."""

    cold: float
    """Share of the requests that found nobody awake, or somebody who was still starting."""
    ttft: float
    """Mean."""
    ttft_warm: float
    """Mean, had it never slept."""
    awake: float
    """Share of the time that is paid for."""
    keep: float
    """Seconds without a request after which it was taken down."""

    @property
    def share_of_ttft(self) -> float:
        """Of all the seconds that people waited for a first word, those that a cold start added."""
        return max(0.0, 1 - self.ttft_warm / self.ttft)


@functools.lru_cache(maxsize=128)
def sleep(per_hour: float, cold: float, keep: float) -> Sleep:
    """Play random arrivals to 70B that is taken down when nobody came for `keep` seconds.

    Args:
        per_hour: requests.
        cold: from ordering the replica to its first request, seconds.
    """
    workload = make_workload(
        fleet.asking(1500, 150), Poisson(rate=per_hour / 3600), num_requests=enough(COUNT, COUNT // 2)
    )
    on = fleet.deployment(max_num_seqs=64)
    # The rate of arrivals, since a short answer may come and go between two looks.
    scaling = {
        "signal": "arrival_rate",
        "target": 1000.0,
        "min_replicas": 0,
        "max_replicas": 1,
        "interval_s": LOOK_S,
        "window_s": 0.0,
    }
    slept = simulated_70b.play(
        on, workload, replicas=0, cold_start_s=cold, autoscaling={**scaling, "scale_down_after_s": keep}
    )
    warm = fleet.Served.of(simulated_70b.play(on, workload))
    found = fleet.Served.of(slept)
    settled = found.settled  # it was asleep when the picture began: the first ones to come do not count
    return Sleep(
        cold=float((found.ttft - warm.ttft > COLD_S)[settled].mean()),
        ttft=float(found.ttft[settled].mean()),
        ttft_warm=float(warm.ttft[settled].mean()),
        awake=min(1.0, slept.replica_seconds / slept.duration),
        keep=keep,
    )


def cold_share(per_hour: float, cold: float, keep: float, look: float = 0.0) -> float:
    """Arithmetic: the share of random arrivals that wait for a cold start.

    `keep` runs from the last request, as an autoscaler counts, and the start is a part of it. So from one sleep to
    the next exp(rate x keep) requests come on average before a gap is longer than that: the first wakes it up, and
    rate x cold more come while it starts. If the start alone takes longer than `keep`, it is not stopped by a long
    gap meanwhile, and rate x (cold - keep) more come.

    Args:
        look: seconds between two looks of the autoscaler. It sees a request half a look late, and a gap a look later.
    """
    rate = per_hour / 3600
    cold, keep = cold + look / 2, keep + 1.5 * look
    return (1 + rate * cold) / (math.exp(rate * keep) + rate * max(cold - keep, 0.0))


def draw_sleep(per_hour: float, cold: float, keep_min: float, price: float) -> Picture:
    """Share of cold starts and dollars a day, against how rare requests are."""
    keep = 60 * keep_min
    played = [sleep(rate, cold, keep) for rate in RATES]
    here = played[RATES.index(per_hour)]
    day = HOURS_A_DAY * GPUS * price
    expected = [100 * cold_share(rate, cold, keep, LOOK_S) for rate in ALL_RATES]
    grey, green = PHASE_COLOURS["queue"], PHASE_COLOURS["decode"]
    panels = [
        Panel("wait for it to wake", "% of requests", [
            Series("simulated", RATES, [100 * p.cold for p in played], PHASE_COLOURS["first_token"]),
            Series("formula", ALL_RATES, expected, grey, dashed=True)], height=92, most=100.0),
        Panel("first word", "mean TTFT, s", [
            Series("sleeps", RATES, [p.ttft for p in played], PHASE_COLOURS["first_token"]),
            Series("always on", RATES, [p.ttft_warm for p in played], grey, dashed=True)], log=True, height=92),
        Panel("GPUs", "dollars a day", [
            Series("sleeps", RATES, [day * p.awake for p in played], green),
            Series("always on", RATES, [day] * len(RATES), grey, dashed=True)], height=92),
    ]  # fmt: skip
    x = Ruler("requests an hour (logarithmic)", RATES[0], RATES[-1], RATES, log=True)
    title = (
        f"{number(per_hour)} an hour: {here.cold:.0%} wait for a cold start, and it costs {dollars(day * here.awake)} "
        f"a day instead of {dollars(day)}"
    )
    told = "; ".join(
        f"{number(rate)} an hour: {p.cold:.0%} cold, mean TTFT {seconds(p.ttft)} against {seconds(p.ttft_warm)}, "
        f"{dollars(day * p.awake)} a day"
        for rate, p in zip(RATES, played)
    )
    return draw_panels(title, x, panels, at=per_hour, description=told)


def sleepers() -> Explorer:
    """Rarity, cold start and patience of the autoscaler as sliders."""

    return Explorer(
        lambda per_hour, cold, keep, price: draw_sleep(per_hour, float(cold), float(keep), price),
        per_hour=choices("requests an hour", RATES, 10.0),
        cold=choices("cold start, s", (10, 60, 180, 600), 180),
        keep=choices("kept awake for, minutes", (1, 5, 15, 60), 5),
        price=slider("dollars for a GPU and hour", 0.5, 12.0, gpu_price(), 0.01),
    )


def played(rates: Sequence[float] = RATES, cold: float = 180.0, keep: float = 300.0) -> dict[float, Sleep]:
    """By requests an hour."""
    return {rate: sleep(rate, cold, keep) for rate in with_progress(rates, "simulating days and nights")}

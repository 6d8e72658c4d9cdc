"""Rare traffic: a replica that is scaled to zero when idle, and one that never is."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.scale import enough
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.requests import make_workload

RATES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Requests an hour."""
LOOK_S = 15.0
"""Seconds between two looks of the autoscaler."""
COLD_S = 1.0
"""Who waits so much longer than at a warm replica came while it slept or started."""
COUNT = 160


@dataclass(frozen=True)
class Sleep:
    """Scale to zero, played. Seconds; shares of 1."""

    cold: float
    """Share of the requests that found no replica, or one that was still starting."""
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
    """Play random arrivals to 70B that is taken down when no request came for `keep` seconds.

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


def played(rates: Sequence[float] = RATES, cold: float = 180.0, keep: float = 300.0) -> dict[float, Sleep]:
    """By requests an hour."""
    return {rate: sleep(rate, cold, keep) for rate in with_progress(rates, "simulating days and nights")}

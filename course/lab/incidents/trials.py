"""Trying a service out on held-out traffic. Of each play only the numbers stay that changes are judged by: the moments
of every token of every change would be hundreds of megabytes.
"""

import gc
from collections.abc import Mapping
from dataclasses import dataclass

from course.lab.incidents.numbers import answered
from course.lab.incidents.service import Play, Service, play
from minillm.simulate.cost.hardware import find_hardware

YOUNG = 1
"""Generations of objects up to this one are those that the play itself has made; looking at older ones takes long."""


@dataclass(frozen=True)
class Trial:
    """What is kept of a play."""

    service: Service
    seed: int
    attainment: float
    """Share of all requests within the SLO."""
    offered: int
    """Requests, answered or not."""
    latencies: Mapping[str, tuple[float, ...]]
    """By name, seconds of each request that was answered, at the client."""
    bill: float
    """Dollars an hour for the accelerators that were up, averaged over the run."""


def trial_of(one: Play) -> Trial:
    """The numbers of a play."""
    rows = [record.as_request_record().timeline for record in answered(one)]
    latencies = {
        "TTFT p95": tuple(row.ttft for row in rows),
        "ITL, largest gap, p95": tuple(max(row.itl, default=0.0) for row in rows),
        "TPOT p95": tuple(row.tpot or 0.0 for row in rows),
        "E2E p95": tuple(row.e2e for row in rows),
    }
    up = one.run.replica_seconds / one.run.duration if one.run.duration else 0.0
    bill = up * one.service.tp * (find_hardware(one.service.hardware).price_per_hour or 0.0)
    return Trial(one.service, one.seed, one.attainment, len(one.run.records), latencies, bill)


class Trials:
    """Plays services on the held-out traffic; nothing is played twice."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self._seeds = seeds
        self._done: list[Trial] = []

    def of(self, service: Service) -> tuple[Trial, ...]:
        """One for each seed.

        Raises:
            PricingError: such a service cannot be built.
        """
        return tuple(self._trial(service, seed) for seed in self._seeds)

    def attainment(self, service: Service) -> float:
        """Share of requests that met the SLO, over all held-out traffic."""
        return sum(one.attainment for one in self.of(service)) / len(self._seeds)

    def _trial(self, service: Service, seed: int) -> Trial:
        for known in self._done:
            if known.seed == seed and known.service == service:
                return known
        self._done.append(trial_of(play(service, seed)))
        gc.collect(YOUNG)  # a play puts it off, and what plays leave behind would add up
        return self._done[-1]

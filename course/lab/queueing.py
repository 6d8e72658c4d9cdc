"""Queueing theory, and a replay of given arrivals. Waits are in service times: 2 means "as long as two services"."""

import random
from collections.abc import Sequence
from functools import cache


def kingman_wait(load: float, arrival_cv: float, service_cv: float) -> float:
    """Mean wait for one slot, whatever the arrivals: Kingman's approximation.

    Args:
        load: arrival rate x mean service time. No mean exists at 1 and above.
        arrival_cv: standard deviation over mean of the gaps between arrivals; 1 = Poisson, 0 = a clock.
        service_cv: the same of the service times; 0 = all equal.
    """
    if load < 0:
        raise ValueError(f"a load is 0 or more, not {load}")
    return float("inf") if load >= 1 else (arrival_cv**2 + service_cv**2) / 2 * load / (1 - load)


def mg1_wait(load: float, service_cv: float) -> float:
    """Pollaczek and Khinchine: exact for Poisson arrivals and one slot, whatever the service times."""
    return kingman_wait(load, 1.0, service_cv)


def md1_wait(load: float) -> float:
    """M/D/1: Poisson arrivals, equal service times, one slot."""
    return mg1_wait(load, 0.0)


def replay(arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """The wait of each of these requests, one slot, first come first served: Lindley's recursion."""
    waits, free_at = [], 0.0
    for arrival, service in zip(arrivals, services):
        start = max(arrival, free_at)
        waits.append(start - arrival)
        free_at = start + service
    return waits


def positives(rng: random.Random, cv: float, count: int) -> list[float]:
    """Random times with mean 1 and this coefficient of variation: constant, exponential or gamma."""
    shape = 1 / cv**2 if cv else 0.0
    return [rng.gammavariate(shape, cv**2) if cv else 1.0 for _ in range(count)]


@cache
def crowd(load: float, arrival_cv: float, service_cv: float, count: int, seed: int) -> tuple[list[float], ...]:
    """Arrivals, service times and waits of `count` random requests, in service times."""
    rng, moment, arrivals = random.Random(seed), 0.0, []
    for gap in positives(rng, arrival_cv, count):
        moment += gap / load
        arrivals.append(moment)
    services = positives(rng, service_cv, count)
    return arrivals, services, replay(arrivals, services)


def mean_waits(load: float, arrival_cv: float, service_cv: float, count: int, seeds: int) -> list[float]:
    """The mean wait of each of several independent runs: how far apart they are is the scatter."""
    return [sum(crowd(load, arrival_cv, service_cv, count, seed)[2]) / count for seed in range(seeds)]

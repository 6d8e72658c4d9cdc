"""When requests arrive: each process is an endless stream of moments, in seconds after the start.

Moments lie on a grid of one nanosecond, so that the last bit of some machine's exp() or log() does not
reach the results.
"""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Protocol

from pydantic import Field, model_validator

from course.simulator.errors import WorkloadError
from course.simulator.workload.streams import WorkloadModel

NANOSECONDS = 1_000_000_000


class Arrivals(Protocol):
    """When requests come."""

    def times(self, rng: random.Random) -> Iterator[float]:
        """Arrival times in ascending order, seconds after the start, without end."""
        ...


class AllAtOnce(WorkloadModel):
    """Everything is there at the start: a batch job, or the throughput mode of benchmark tools."""

    def times(self, rng: random.Random) -> Iterator[float]:
        return itertools.repeat(0.0)


class Deterministic(WorkloadModel):
    """One request every 1 / rate seconds."""

    rate: float = Field(gt=0, description="requests per second")

    def times(self, rng: random.Random) -> Iterator[float]:
        return accumulate(itertools.repeat(1 / self.rate))


class Poisson(WorkloadModel):
    """Many users who do not know of each other: exponential gaps, coefficient of variation 1."""

    rate: float = Field(gt=0, description="requests per second")

    def times(self, rng: random.Random) -> Iterator[float]:
        return accumulate(rng.expovariate(self.rate) for _ in itertools.count())


class Gamma(WorkloadModel):
    """Gaps of any burstiness: Gamma-distributed, with mean 1 / rate and coefficient of variation cv.

    cv 1 is Poisson, below 1 is more even, above 1 comes in clumps. Azure's trace of chat requests has cv
    1.1, its trace of code completion 13 (Patel et al., "Splitwise", 2024).
    """

    rate: float = Field(gt=0, description="requests per second")
    cv: float = Field(1.0, gt=0, le=15, description="standard deviation of the gaps over their mean")

    def times(self, rng: random.Random) -> Iterator[float]:
        shape = 1 / self.cv**2
        scale = 1 / (self.rate * shape)
        return accumulate(rng.gammavariate(shape, scale) for _ in itertools.count())


class VaryingPoisson(WorkloadModel):
    """A Poisson process whose rate changes, by thinning (Lewis & Shedler, 1979).

    Candidates arrive at the highest rate there will be; each is kept with probability rate now / peak.
    """

    def rate_at(self, moment: float) -> float:
        """Requests per second at this moment."""
        raise NotImplementedError

    @property
    def peak(self) -> float:
        """No rate is ever higher; requests per second."""
        raise NotImplementedError

    def times(self, rng: random.Random) -> Iterator[float]:
        candidates = accumulate(rng.expovariate(self.peak) for _ in itertools.count())
        return (moment for moment in candidates if rng.random() * self.peak < self.rate_at(moment))


class Spikes(VaryingPoisson):
    """A steady rate, and a much higher one for a while; once, or again and again."""

    rate: float = Field(gt=0, description="requests per second outside the spike")
    spike_rate: float = Field(gt=0, description="requests per second during it")
    start_s: float = Field(ge=0, description="when the first spike begins, seconds")
    length_s: float = Field(gt=0, description="how long it lasts, seconds")
    every_s: float | None = Field(None, gt=0, description="begin to begin of two spikes, seconds; None = only one")

    @model_validator(mode="after")
    def _fits(self) -> "Spikes":
        if self.every_s is not None and self.every_s < self.length_s:
            raise ValueError(f"every_s ({self.every_s}) must be at least length_s ({self.length_s})")
        return self

    def rate_at(self, moment: float) -> float:
        since = moment - self.start_s
        if since >= 0 and self.every_s is not None:
            since %= self.every_s
        return self.spike_rate if 0 <= since < self.length_s else self.rate

    @property
    def peak(self) -> float:
        return max(self.rate, self.spike_rate)


class Ramp(VaryingPoisson):
    """The rate moves in a straight line from one value to another, and stays there."""

    start_rate: float = Field(ge=0, description="requests per second at the start")
    end_rate: float = Field(gt=0, description="requests per second from length_s on")
    length_s: float = Field(gt=0, description="seconds from the first to the last")

    def rate_at(self, moment: float) -> float:
        share = min(moment / self.length_s, 1.0)
        return self.start_rate + share * (self.end_rate - self.start_rate)

    @property
    def peak(self) -> float:
        return max(self.start_rate, self.end_rate)


def accumulate(gaps: Iterator[float]) -> Iterator[float]:
    """Moments from the gaps between them, on the grid."""
    ticks = 0
    for gap in gaps:
        ticks += round(gap * NANOSECONDS)
        yield ticks / NANOSECONDS


def take(
    arrivals: Arrivals, rng: random.Random, num: int | None = None, duration_s: float | None = None
) -> list[float]:
    """The first `num` arrivals, or those before `duration_s`; with both, whichever ends first.

    Raises:
        WorkloadError: neither is given, so it would never end, or one is negative.
    """
    if num is None and duration_s is None:
        raise WorkloadError("arrivals never end: say how many (num_requests) or for how long (duration_s)")
    if isinstance(arrivals, AllAtOnce) and num is None:
        raise WorkloadError("AllAtOnce never gets past time 0: say how many (num_requests)")
    if (num is not None and num < 0) or (duration_s is not None and not duration_s >= 0):
        raise WorkloadError(f"num_requests and duration_s are 0 or more, not {num} and {duration_s}")
    end = math.inf if duration_s is None else duration_s
    return list(itertools.takewhile(lambda moment: moment < end, itertools.islice(arrivals.times(rng), num)))


SLOWEST = 1e-6
"""Requests per second: one in eleven days."""


def find_arrivals(name: str, rate: float, cv: float | None = None) -> Arrivals:
    """How requests are spread: "poisson", or "gamma" with a coefficient of variation (1 unless said).

    Raises:
        WorkloadError: a rate that is not above zero, a cv out of range, or one given to a Poisson process.
    """
    if not rate >= SLOWEST:
        raise WorkloadError(f"a rate is at least {SLOWEST:g} requests per second, not {rate:g}")
    if name == "gamma":
        return Gamma(rate=rate, cv=1.0 if cv is None else cv)
    if cv not in (None, 1.0):
        raise WorkloadError(f"a Poisson process has cv 1, not {cv:g}: choose --arrival gamma")
    return Poisson(rate=rate)

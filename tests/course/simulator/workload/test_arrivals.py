"""Arrival processes: their statistics, their shapes over time, and what they refuse."""

import itertools
import math

import numpy as np
import pytest

from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Deterministic, Gamma, Poisson, Ramp, Spikes, take
from course.simulator.workload.streams import Streams


def moments(arrivals: Arrivals, num: int, seed: int = 0) -> np.ndarray:
    return np.array(take(arrivals, Streams(seed)["arrivals"], num))


def rate_between(times: np.ndarray, start: float, end: float) -> float:
    return float(((times >= start) & (times < end)).sum() / (end - start))


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [(Deterministic(rate=5), 0.0), (Poisson(rate=5), 1.0), (Gamma(rate=5, cv=0.3), 0.3), (Gamma(rate=5, cv=4), 4.0)],
    ids=repr,
)
def test_mean_rate_and_burstiness(arrivals: Arrivals, cv: float) -> None:
    gaps = np.diff(moments(arrivals, 40_000), prepend=0.0)
    assert np.mean(gaps) == pytest.approx(1 / 5, rel=4 * max(cv, 0.01) / math.sqrt(40_000))  # 4 standard errors
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_cv_15_comes_in_clumps() -> None:
    """With so heavy a tail no sample is long enough to check the cv itself; the median gap tells."""
    gaps = np.diff(moments(Gamma(rate=5, cv=15), 40_000), prepend=0.0)
    assert np.mean(gaps) == pytest.approx(1 / 5, rel=0.3)
    assert np.median(gaps) < 1e-6
    assert np.max(gaps) > 100 * np.mean(gaps)


def test_spikes_are_where_they_should_be() -> None:
    once = moments(Spikes(rate=10, spike_rate=100, start_s=50, length_s=20), 6000)
    assert rate_between(once, 0, 50) == pytest.approx(10, rel=0.2)
    assert rate_between(once, 50, 70) == pytest.approx(100, rel=0.1)
    assert rate_between(once, 70, 200) == pytest.approx(10, rel=0.15)

    again = moments(Spikes(rate=10, spike_rate=100, start_s=50, length_s=20, every_s=60), 9000)
    assert rate_between(again, 110, 130) == pytest.approx(100, rel=0.1)
    assert rate_between(again, 130, 170) == pytest.approx(10, rel=0.25)


def test_a_ramp_climbs_and_stays() -> None:
    times = moments(Ramp(start_rate=0, end_rate=40, length_s=100), 6000)
    assert rate_between(times, 0, 50) == pytest.approx(10, rel=0.2)
    assert rate_between(times, 50, 100) == pytest.approx(30, rel=0.12)
    assert rate_between(times, 100, 150) == pytest.approx(40, rel=0.1)


def test_all_at_once() -> None:
    assert take(AllAtOnce(), Streams(0)["arrivals"], 3) == [0.0, 0.0, 0.0]


def test_moments_lie_on_the_grid_of_nanoseconds_and_ascend() -> None:
    times = take(Poisson(rate=1000), Streams(0)["arrivals"], 2000)
    assert all(round(t * 1e9) / 1e9 == t for t in times)
    assert all(a <= b for a, b in itertools.pairwise(times))


def test_duration_ends_it() -> None:
    times = take(Poisson(rate=10), Streams(0)["arrivals"], duration_s=20.0)
    assert 150 < len(times) < 250
    assert times[-1] < 20.0
    assert take(Poisson(rate=10), Streams(0)["arrivals"], num=7, duration_s=20.0) == times[:7]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(rate=0),
        lambda: Poisson(rate=-1),
        lambda: Poisson(rate=float("nan")),
        lambda: Gamma(rate=1, cv=16),
        lambda: Spikes(rate=1, spike_rate=2, start_s=0, length_s=10, every_s=5),
        lambda: Poisson(rate=1, speed=2),
        lambda: take(Poisson(rate=1), Streams(0)["arrivals"]),
        lambda: take(Poisson(rate=1), Streams(0)["arrivals"], num=-1),
        lambda: take(AllAtOnce(), Streams(0)["arrivals"], duration_s=1.0),
        lambda: Streams(-1),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(WorkloadError):
        make()

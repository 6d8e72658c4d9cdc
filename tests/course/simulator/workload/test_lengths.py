"""Length distributions, on their own and against the traces they are shaped like."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from course.simulator.errors import WorkloadError
from course.simulator.workload.lengths import AZURE, Fixed, Lengths, LogNormal, Quantiles, Uniform


def samples(lengths: Lengths, num: int = 20_000) -> np.ndarray:
    return np.array([lengths.at(u) for u in np.random.default_rng(0).random(num).tolist()])


def test_fixed_and_uniform() -> None:
    assert set(samples(Fixed(tokens=7))) == {7}
    drawn = samples(Uniform(low=3, high=6))
    assert set(drawn) == {3, 4, 5, 6}
    assert np.bincount(drawn)[3:] / len(drawn) == pytest.approx([0.25] * 4, abs=0.02)


def test_log_normal() -> None:
    drawn = samples(LogNormal(median=200, sigma=0.8))
    assert np.median(drawn) == pytest.approx(200, rel=0.03)
    assert np.std(np.log(drawn)) == pytest.approx(0.8, rel=0.03)
    clipped = samples(LogNormal(median=200, sigma=2.0, low=50, high=1000))
    assert (clipped.min(), clipped.max()) == (50, 1000)


@pytest.mark.parametrize("lengths", [Fixed(tokens=3), Uniform(low=1, high=9), LogNormal(median=9, sigma=1)], ids=repr)
def test_a_quantile_function_never_falls_and_takes_the_ends(lengths: Lengths) -> None:
    drawn = [lengths.at(u) for u in np.linspace(0, np.nextafter(1, 0), 1001).tolist()]
    assert drawn == sorted(drawn)
    assert drawn[0] >= 1


def test_quantiles_pass_through_their_points() -> None:
    lengths = Quantiles(points=((0, 10), (0.5, 100), (1, 1000)))
    assert [lengths.at(u) for u in (0.0, 0.25, 0.5, 0.75, 1.0)] == [10, 32, 100, 316, 1000]


@pytest.mark.parametrize(
    "points",
    [
        ((0, 1),),
        ((0.1, 1), (1, 2)),
        ((0, 1), (0.9, 2)),
        ((0, 1), (0.5, 3), (0.5, 4), (1, 5)),
        ((0, 5), (1, 4)),
        ((0, 0), (1, 4)),
    ],
)
def test_bad_quantiles_are_refused(points) -> None:
    with pytest.raises(WorkloadError):
        Quantiles(points=points)


@pytest.mark.parametrize("make", [lambda: Fixed(tokens=0), lambda: Uniform(low=5, high=4), lambda: LogNormal(median=5)])
def test_bad_lengths_are_refused(make) -> None:
    with pytest.raises(WorkloadError):
        make()


@pytest.mark.parametrize(
    ("trace", "column", "lengths"),
    [
        ("conv", "ContextTokens", AZURE["chat_prompt"]),
        ("conv", "GeneratedTokens", AZURE["chat_output"]),
        ("code", "ContextTokens", AZURE["code_prompt"]),
        ("code", "GeneratedTokens", AZURE["code_output"]),
    ],
)
def test_presets_have_the_shape_of_the_real_traces(
    trace: str, column: str, lengths: Lengths, recording: Callable[[str], Path]
) -> None:
    with open(recording(f"AzureLLMInferenceTrace_{trace}.csv"), newline="") as file:
        real = np.array([int(row[column]) for row in csv.DictReader(file)])
    ours = np.array([lengths.at(u) for u in ((np.arange(20_000) + 0.5) / 20_000).tolist()])
    assert np.mean(ours) == pytest.approx(np.mean(real), rel=0.03)
    for percent in (5, 10, 25, 50, 60, 75, 80, 90, 95, 99):
        assert np.percentile(ours, percent) == pytest.approx(np.percentile(real, percent), rel=0.08, abs=1.01), percent
    distance = np.abs(
        np.searchsorted(np.sort(ours), real, side="right") / len(ours)
        - np.searchsorted(np.sort(real), real, side="right") / len(real)
    )
    assert distance.max() < 0.05  # Kolmogorov-Smirnov

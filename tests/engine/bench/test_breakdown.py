"""`minillm bench step-breakdown`: stages add up, and each variant changes one thing."""

from collections.abc import Callable
from typing import Any

import pytest

from minillm.bench.breakdown import applicable, breakdown, summarize
from minillm.bench.steady import DecodeStep, SteadySteps
from minillm.observe.spread import Spread
from minillm.policies.config import EngineConfig

STAGES = ["schedule", "build", "forward", "sample", "detokenize", "rest"]


def step(seconds: float, forward: float, **stages: float) -> DecodeStep:
    return DecodeStep(seconds, {"forward": forward, **stages})


def test_numbers_belong_together(bench_json: Callable[..., Any]) -> None:
    report = bench_json("step-breakdown", "--batch", "2")
    by_name = {row["name"]: row for row in report["results"]}
    assert list(by_name) == ["default", "eager attention", "no fused kernels"]
    assert report["unable"] == {"sdpa attention": "the default runs it already"}
    for row in by_name.values():
        assert list(row["stages"]) == STAGES
        assert sum(stage["share"] for stage in row["stages"].values()) == pytest.approx(1)
        assert row["num_steps"] == report["settings"]["steps"] * report["settings"]["repeats"]
        assert all(stage["median_s"] <= stage["p99_s"] for stage in row["stages"].values())
    assert by_name["default"]["time_over_default"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert by_name["eager attention"]["time_over_default"]["median"] > 0
    assert by_name["eager attention"]["fields"] == {"attention_backend": "eager"}


def test_rest_is_what_no_stage_claims() -> None:
    stages = breakdown([step(10.0, 6.0, schedule=1.0), step(20.0, 12.0, schedule=2.0), step(10.0, 6.0, swap=3.0)])
    assert list(stages) == [*STAGES[:5], "swap", "rest"]
    assert stages["forward"].share == pytest.approx(24 / 40)
    assert stages["forward"].median_s == 6.0
    assert stages["rest"].share == pytest.approx((3 + 6 + 1) / 40)
    assert stages["sample"].median_s == 0.0


def test_gains_are_paired_by_turn() -> None:
    # The machine is twice as slow in the second turn: the ratio does not notice.
    default, slower = (
        [SteadySteps([step(seconds, 1.0)] * 3, mean_context=1.0) for seconds in turns]
        for turns in ((1.0, 2.0), (3.0, 6.0))
    )
    result = summarize("no fused kernels", slower, default)
    assert result.time_over_default == Spread(3.0, 3.0, 3.0)
    assert result.num_steps == 6


def test_variants_are_those_that_make_sense_and_change_something() -> None:
    on_cpu = ["default", "eager attention", "sdpa attention", "no fused kernels"]
    assert applicable(EngineConfig(), "cpu") == on_cpu
    eager = applicable(EngineConfig(attention_backend="eager"), "cpu")
    assert eager == ["default", "sdpa attention", "no fused kernels"]
    assert {"triton attention", "no CUDA graphs", "no async scheduling"} < set(applicable(EngineConfig(), "cuda"))


def test_with_a_window_too_the_default_is_not_measured_twice(bench_json: Callable[..., Any]) -> None:
    """An attention with a window is a class of its own in every engine."""
    report = bench_json("step-breakdown", "--set", "sliding_window=16", "--batch", "2")
    assert report["unable"] == {"sdpa attention": "the default runs it already"}

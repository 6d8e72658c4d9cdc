"""`minillm bench throughput`: the compact engines' workload, for minillm and its baselines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from course.measure.workloads import ragged_workload
from minillm.bench.errors import BenchmarkError


def test_workload_is_the_compact_engines() -> None:
    workload = ragged_workload(50_000, requests=256, seed=0, scale=1.0)
    for lengths in ([len(prompt) for prompt in workload.prompts], workload.output_lens):
        assert len(lengths) == 256
        assert 100 <= min(lengths) <= max(lengths) <= 1024
        assert 500 < sum(lengths) / 256 < 620  # uniform: the mean of 100 and 1024 is 562
    assert workload.title == "256 requests, 100-1024 in, 100-1024 out, all at once (scale 1)"
    assert workload == ragged_workload(50_000, requests=256, seed=0, scale=1.0)
    assert workload != ragged_workload(50_000, requests=256, seed=1, scale=1.0)


def test_scale_shrinks_every_length() -> None:
    small = ragged_workload(50_000, requests=64, seed=0, scale=0.25)
    assert all(25 <= len(prompt) <= 256 for prompt in small.prompts)
    assert all(25 <= length <= 256 for length in small.output_lens)


def test_numbers_belong_together(bench_json: Callable[..., Any]) -> None:
    report = bench_json("throughput", "--requests", "5", "--seed", "3")
    [result] = report["results"]
    [own] = result["peers"]
    assert result["num_requests"] == 5
    assert (report["settings"]["scale"], report["settings"]["seed"]) == (0.02, 3)
    assert own["tokens_per_s"]["median"] == pytest.approx(result["num_output_tokens"] / own["seconds"]["median"])


@pytest.mark.parametrize("load_format", ["auto", pytest.param("dummy", marks=pytest.mark.slow)])
def test_hugging_face_runs_the_same_workload(bench_json: Callable[..., Any], load_format: str) -> None:
    report = bench_json("throughput", "--compare", "hf", "--load-format", load_format)
    [result] = report["results"]
    own, other = result["peers"]
    assert (own["peer"], other["peer"]) == ("minillm", "hf_continuous")
    assert result["reference"] == "hf_continuous"
    assert own["speedups"]["hf_continuous"]["median"] > 0
    assert set(report["peers"]) == {"minillm", "hf_continuous"}


def test_a_config_that_transformers_cannot_read_is_named(
    bench: Callable[..., Result], tiny_llama_path: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_llama_path / "config.json").read_text())
    del config["model_type"]
    (tmp_path / "bare.json").write_text(json.dumps(config))
    with pytest.raises(BenchmarkError, match="give it a model_type"):
        bench("throughput", "--compare", "hf", "--load-format", "dummy", "--model", str(tmp_path / "bare.json"))

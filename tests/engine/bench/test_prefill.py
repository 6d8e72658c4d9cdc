"""`minillm bench prefill`: one prompt a step, all of it computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from minillm.bench.errors import BenchmarkError
from minillm.bench.prefill import prefill_seconds, summarize
from minillm.bench.target import Costs, Target
from minillm.core.errors import ConfigError
from minillm.frontend.engine import Engine
from minillm.model.arithmetic import ModelBytes, ModelFlops
from minillm.model.loader import load_model
from minillm.model.packed import CPULinear

COSTS = Costs(ModelBytes(weights=1000, kv_per_token=10), ModelFlops(per_token=4, per_logit_row=6, per_pair=2))


def test_numbers_belong_together(bench_json: Callable[..., Any]) -> None:
    report = bench_json("prefill")
    assert [row["prompt_len"] for row in report["results"]] == [16, 32]
    assert report["roof"]["matmul_dtype"] == "float32"
    for row in report["results"]:
        assert row["flops_per_s"] == pytest.approx(row["flops"] / row["step_s"])
        assert row["mfu"] == pytest.approx(row["flops_per_s"] / report["roof"]["matmul"])
        assert row["tokens_per_s"] == pytest.approx(row["prompt_len"] / row["step_s"])
    engine = report["settings"]["engine"]
    assert engine["enable_prefix_caching"] is False


def test_the_output_says_what_the_linear_layers_compute_in(bench: Callable[..., Result], tiny_llama_path: Path) -> None:
    table = bench("prefill", "--dtype", "bfloat16").stdout
    assert "in bfloat16: one prompt a step" in table
    model = load_model(Target(str(tiny_llama_path), dtype="bfloat16").config())
    head = model.decoder.lm_head
    computes = head.many.computes if isinstance(head, CPULinear) else torch.bfloat16
    assert f"the linear layers compute in {str(computes).removeprefix('torch.')}" in table


def test_summary_by_hand() -> None:
    result = summarize(10, [2.0, 1.0, 4.0], COSTS, matmul=100.0)
    assert result.flops == 4 * 10 + 6 + 2 * 50
    assert (result.step_s, result.step_low_s, result.step_high_s) == (2.0, 1.0, 4.0)
    assert result.flops_per_s == 73.0
    assert result.mfu == pytest.approx(0.73)


def test_a_prompt_longer_than_the_window_is_cut(bench_json: Callable[..., Any]) -> None:
    report = bench_json("prefill", "--tokens", "20", "--tokens", "9000", "--set", "max_model_len=64")
    assert [row["prompt_len"] for row in report["results"]] == [20, 63]


def test_a_prompt_in_pieces_is_not_measured(tiny_llama_path: Path) -> None:
    target = Target(str(tiny_llama_path), dtype="float32", fields={"num_kv_blocks": 32})
    engine = Engine(target.config(max_num_batched_tokens=32))
    assert 0 < prefill_seconds(engine, [5] * 30) < 60
    with pytest.raises(BenchmarkError, match="more than one step"):
        prefill_seconds(engine, [6] * 40)


def test_a_prefix_cache_is_refused(bench: Callable[..., Result]) -> None:
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        bench("prefill", "--set", "enable_prefix_caching=true")

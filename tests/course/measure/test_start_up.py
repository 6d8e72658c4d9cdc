"""What a process's start takes, and what a failing one says."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from minillm.bench.errors import BenchmarkError


def test_the_parts_of_a_start_add_up(bench_json: Callable[..., Any]) -> None:
    report = bench_json("start-up", "--set", "num_kv_blocks=64")
    [row] = report["results"]
    assert row["total_s"] == pytest.approx(row["import_s"] + row["engine_s"] + row["first_token_s"])
    assert min(row["import_s"], row["engine_s"], row["first_token_s"], row["slowest_step_s"]) > 0
    assert row["graphs_at_start"] == row["graphs_later"] == [0, 0], "there are none on a CPU"
    assert report["settings"]["engine"]["num_kv_blocks"] == 64


def test_why_it_did_not_start_is_told(bench: Callable[..., Result]) -> None:
    with pytest.raises(BenchmarkError, match="fp8"):
        bench("start-up", "--set", "quantization=fp8")

"""`minillm bench`, as it is typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minillm.cli import app

QUICK = ["bench", "--quick", "--dtype", "float32"]


def test_comparison_prints_one_json_object(tiny_llama_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = [*QUICK, "--model", str(tiny_llama_path), "--compare", "hf", "--json", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report == json.loads(out.read_text())
    assert set(report["peers"]) == {"minillm", "hf_generate", "hf_continuous"}
    assert report["peers"]["hf_continuous"]["attention"] == "sdpa over a paged cache"
    assert {"cpu", "cores", "flags", "torch", "transformers"} <= set(report["machine"])
    assert [workload["name"] for workload in report["results"]] == ["one", "eight", "mixed", "shared_prefix"]
    for workload in report["results"]:
        own = workload["peers"][0]
        assert own["peer"] == "minillm"
        assert own["speedup"]["low"] <= own["speedup"]["median"] <= own["speedup"]["high"]
        assert (own["percent_of_floor"] is None) == (workload["floor_itl"] is None)


def test_alone_it_prints_a_table_of_the_chosen_workload(tiny_llama_path: Path) -> None:
    arguments = [*QUICK, "--model", str(tiny_llama_path), "--workload", "one"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "1 request, 128 in, 64 out (quick: 1/8 of it); memory floor" in result.stdout
    assert "8 requests" not in result.stdout
    assert "hf_generate" not in result.stdout
    assert "speedup" in result.stdout


@pytest.mark.parametrize("arguments", [["--compare", "vllm"], ["--repeats", "0"], ["--dtype", "int3"]], ids=str)
def test_bad_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["bench", *arguments]).exit_code == 2

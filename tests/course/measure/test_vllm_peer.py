"""vLLM as a baseline, over a stand-in for its package: what it's asked for, and what is made of what it says."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result
from vllm_stand_in import STAND_IN, make_vllm_stand_in

from course.measure.contest import MissingBaselineError
from course.measure.peers.make import check_installed
from course.measure.peers.vllm_peer import PYTHON_VARIABLE, THREADS_VARIABLE, at_its_best, cores
from course.simulator.errors import WorkloadError
from minillm.bench.cli import bench_app
from minillm.bench.errors import BenchmarkError
from minillm.core.errors import ConfigError


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = make_vllm_stand_in(tmp_path)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    return python


def test_it_gets_the_same_requests_and_limits(
    stand_in: Path, bench_json: Callable[..., Any], tiny_llama_path: Path
) -> None:
    report = bench_json("throughput", "--compare", "vllm", "--set", "max_num_seqs=3", "--set", "num_kv_blocks=64")
    [result] = report["results"]
    own, other = result["peers"]
    assert (own["peer"], other["peer"], result["reference"]) == ("minillm", "vllm", "vllm")
    ours, theirs = report["peers"]["minillm"], report["peers"]["vllm"]
    assert theirs["max_num_seqs"] == 3 and theirs["max_num_batched_tokens"] == ours["max_num_batched_tokens"]
    assert theirs["max_model_len"] < 64 * ours["block_size"], "vLLM keeps a block of the pool for itself"
    assert theirs["dtype"] == ours["dtype"] and theirs["block_size"] == "auto"
    assert theirs["kv_blocks"] == 64 * ours["block_size"] * report["kv_bytes_per_token"]
    assert other["tokens_per_delivery"] == 1
    assert theirs["environment"][THREADS_VARIABLE].split(",") == [
        str(core) for core in cores()[: torch.get_num_threads()]
    ]


def test_what_the_user_set_for_it_stays(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, "0")
    assert at_its_best(str(stand_in), "cpu")[THREADS_VARIABLE] == "0"
    monkeypatch.delenv(THREADS_VARIABLE)
    assert at_its_best(str(stand_in), "cuda") == {}


def test_what_it_did_otherwise_is_refused(
    stand_in: Path, bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENS_LOST", "1")
    with pytest.raises(BenchmarkError, match="vllm emitted"):
        bench("throughput", "--compare", "vllm")
    monkeypatch.setenv("ITS_DEVICE", "cuda")
    with pytest.raises(BenchmarkError, match="runs on cuda, and minillm on cpu"):
        bench("throughput", "--compare", "vllm")


def test_why_it_ended_is_told(stand_in: Path, bench: Callable[..., Result]) -> None:
    site = stand_in.parent / "site" / "vllm" / "__init__.py"
    site.write_text(f"{STAND_IN}\nraise OSError('a library is missing')\n")
    with pytest.raises(BenchmarkError, match="a library is missing"):
        bench("throughput", "--compare", "vllm")


def test_without_it_the_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for python in (str(tmp_path / "nowhere"), sys.executable):
        monkeypatch.setenv(PYTHON_VARIABLE, python)
        with pytest.raises(MissingBaselineError, match=f"{python}.*{PYTHON_VARIABLE}="):
            check_installed(["vllm"])


def test_two_servers_get_the_same_requests(stand_in: Path, tiny_llama_path: Path) -> None:
    asked = f"serve --compare vllm --json --model {tiny_llama_path} --set dtype=float32 --set num_kv_blocks=64"
    load = "--concurrency 2 --num-requests 4 --prompt-tokens 8 --output-tokens 5 --body ignore_eos=true"
    result = CliRunner().invoke(bench_app, f"{asked} {load}".split(), catch_exceptions=False)
    engines = json.loads(result.stdout)["engines"]
    assert result.exit_code == 0 and list(engines) == ["minillm", "vllm"]
    ours, theirs = (engines[name] for name in engines)
    assert ours["counts"] == theirs["counts"] == {"completed": 4}
    assert ours["tokens"]["output"] == theirs["tokens"]["output"] == 20
    assert ours["tokens"]["prompt"] == theirs["tokens"]["prompt"]
    assert ours["endpoint"]["model"] == theirs["endpoint"]["model"] == tiny_llama_path.name


@pytest.mark.slow
def test_random_weights_are_served_at_the_same_shares_of_the_first_one_s_capacity(
    stand_in: Path, tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape has no tokenizer, so it gets one of words, for both servers."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    shape = tmp_path / "tiny.json"
    shape.write_text((tiny_llama_path / "config.json").read_text())
    asked = f"serve --compare vllm --json --model {shape} --set dtype=float32 --set num_kv_blocks=64 --share 0.5"
    load = "--concurrency 2 --num-requests 4 --prompt-tokens 8 --output-tokens 5 --body ignore_eos=true --slo-ttft 9"
    result = CliRunner().invoke(bench_app, f"{asked} {load}".split(), catch_exceptions=False)
    ours, theirs = json.loads(result.stdout)["engines"].values()
    assert list(ours) == list(theirs) == ["closed", "0.5"]
    for name in ours:
        assert ours[name]["counts"] == theirs[name]["counts"] == {"completed": 4}
        assert ours[name]["tokens"]["output"] == theirs[name]["tokens"]["output"] == 20
        assert ours[name]["tokens"]["prompt"] == theirs[name]["tokens"]["prompt"] == 4 * 8
    assert ours["0.5"]["settings"]["rate"] == theirs["0.5"]["settings"]["rate"]
    assert ours["0.5"]["settings"]["rate"] == ours["closed"]["rates"]["requests_per_s"] / 2


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ("--compare vllm --url http://127.0.0.1:9", ConfigError, "leave out --url"),
        ("--set max_num_seqs=3", ConfigError, "goes with --compare"),
        ("--share 0.5", WorkloadError, "leave out --rate"),
    ],
)
def test_what_makes_no_comparison_is_refused(stand_in: Path, arguments: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        CliRunner().invoke(bench_app, ["serve", "--rate", "5", *arguments.split()], catch_exceptions=False)

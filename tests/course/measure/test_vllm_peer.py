"""vLLM as a baseline, over a stand-in for its package: what it's asked for, and what is made of what it says."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from course.measure.contest import MissingBaselineError
from course.measure.peers.make import check_installed
from course.measure.peers.vllm_peer import PYTHON_VARIABLE
from minillm.bench.cli import bench_app
from minillm.bench.errors import BenchmarkError
from minillm.core.errors import ConfigError

STAND_IN = '''
"""As much of vLLM as the worker uses. Each step gives every request a token; TOKENS_LOST are never emitted."""
import os, time
from types import SimpleNamespace as Record

__version__ = "0.0"
print("what vLLM prints")


class SamplingParams:
    def __init__(self, *, max_tokens, temperature, ignore_eos, detokenize):
        assert temperature == 0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens - int(os.environ.get("TOKENS_LOST", 0))


class LLM:
    def __init__(self, *, dtype, model, load_format, skip_tokenizer_init, **limits):
        if not os.path.exists(os.path.join(model, "config.json")):
            raise OSError("no config.json")
        self.left = {}
        names = {"max_num_seqs", "max_num_batched_tokens"}
        self.llm_engine = Record(
            engine_core=Record(get_output=self.step),
            vllm_config=Record(
                device_config=Record(device_type=os.environ.get("ITS_DEVICE", "cpu")),
                model_config=Record(dtype=f"torch.{dtype}", max_model_len=limits["max_model_len"]),
                compilation_config=Record(mode=None, cudagraph_mode=None),
                scheduler_config=Record(async_scheduling=False, **{name: limits[name] for name in names}),
                cache_config=Record(
                    num_gpu_blocks=limits["kv_cache_memory_bytes"],
                    block_size=load_format,
                    enable_prefix_caching=limits["enable_prefix_caching"],
                ),
            ),
        )

    def reset_prefix_cache(self):
        return True

    def step(self):
        outputs = [Record(request_id=name, new_token_ids=[5]) for name, left in self.left.items() if left]
        self.left = {name: left - 1 for name, left in self.left.items() if left > 1}
        return Record(outputs=outputs)

    def generate(self, prompts, params, use_tqdm):
        self.left = {f"{i}-x": each.max_tokens for i, each in enumerate(params)}
        while self.left:
            self.llm_engine.engine_core.get_output()
        return [Record(outputs=[Record(token_ids=[5] * each.max_tokens)]) for each in params]
'''

STAND_IN_SERVER = '''
"""Our own server under vLLM's flags, which has no option for bytes of KV."""
import os, sys

given = [word for word in sys.argv[1:] if word != "--disable-uvicorn-access-log"]
place = given.index("--kv-cache-memory-bytes")
gigabytes = str(int(given[place + 1]) / 1e9)
given[place : place + 2] = ["--kv-cache-memory-gb", gigabytes, "--no-access-log"]
os.execv(sys.executable, [sys.executable, "-m", "minillm", "serve", *given])
'''


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has it: this one, with a folder more on its path."""
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    server = package / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text(STAND_IN_SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
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
    assert theirs["dtype"] == ours["dtype"] and theirs["block_size"] == "auto"
    assert theirs["kv_blocks"] == 64 * ours["block_size"] * report["kv_bytes_per_token"]
    assert other["tokens_per_delivery"] == 1


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
    assert ours["endpoint"]["model"] == theirs["endpoint"]["model"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ("--compare vllm --url http://127.0.0.1:9", ConfigError, "leave out --url"),
        ("--set max_num_seqs=3", ConfigError, "goes with --compare"),
        ("--compare vllm --model llama-3-8b", BenchmarkError, "without a tokenizer"),
    ],
)
def test_what_makes_no_comparison_is_refused(stand_in: Path, arguments: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        CliRunner().invoke(bench_app, ["serve", "--rate", "5", *arguments.split()], catch_exceptions=False)

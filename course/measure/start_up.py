"""`minillm bench start-up`: seconds from starting a process to its first token, and what they go to.

Each way is a process of its own: with an empty cache of compiled Triton kernels (cold), with the one that this left
(warm), and warm with graphs that are captured when a size is first met. After the first token come some requests
together, so that sizes are met: how long the slowest of their steps took is what a shorter start may cost later.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from course.measure import start_up_child
from minillm.bench.errors import BenchmarkError
from minillm.bench.report import BenchmarkResult
from minillm.bench.target import Target
from minillm.observe.tables import text_table

WAYS: dict[str, dict[str, Any]] = {"cold": {}, "warm": {}, "warm, lazy graphs": {"lazy_graphs": True}}
"""Fields of each, in the order in which they are started."""
COLUMNS = ("", "imports", "engine", "first token", "in all", "graphs at start", "later", "slowest step ms")


@dataclass(frozen=True, slots=True)
class StartUp:
    """One process. Seconds; graphs are sizes of steps, those that only decode and others."""

    way: str
    import_s: float
    """From starting Python until minillm is imported."""
    engine_s: float
    """Then until the engine is made: weights drawn or read, KV pool, kernels compiled, graphs captured."""
    first_token_s: float
    """Then until a prompt of 128 tokens has its first token."""
    total_s: float
    graphs_at_start: list[int]
    """Sizes captured when the engine was made: of decodes, and of steps in pieces."""
    graphs_later: list[int]
    """The same of those captured since, while the requests after the first were served."""
    slowest_step_s: float
    """The longest step that served those requests."""


def run(target: Target, quick: bool) -> BenchmarkResult:
    """Measure each way once.

    Raises:
        BenchmarkError: a process fails; with the end of what it printed.
        ConfigError: see EngineConfig.
    """
    fields = target.config().model_dump(mode="json", exclude_unset=True)
    results, told = [], dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="minillm-triton-") as kernels:
        for way, chosen in {"warm": {}}.items() if quick else WAYS.items():
            told = _started({**fields, **chosen}, {"TRITON_CACHE_DIR": kernels})
            results.append(StartUp(way=way, **told.pop("measured")))
    text = f"seconds from the start of a process\n\n{text_table(COLUMNS, map(_cells, results))}"
    return BenchmarkResult(results, {"engine": told["engine"]}, told["dtype"], torch.device(told["device"]), text)


def _started(fields: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", start_up_child.__name__, repr(time.time()), json.dumps(fields)]
    child = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if child.returncode:
        raise BenchmarkError(f"an engine didn't start. The end of what it printed:\n{child.stderr[-1500:]}")
    return json.loads(child.stdout.splitlines()[-1])  # a library may have printed before


def _cells(row: StartUp) -> list[str]:
    seconds = (row.import_s, row.engine_s, row.first_token_s, row.total_s)
    graphs = (" + ".join(map(str, sizes)) for sizes in (row.graphs_at_start, row.graphs_later))
    return [row.way, *(f"{each:.2f}" for each in seconds), *graphs, f"{1e3 * row.slowest_step_s:.0f}"]

"""Where one real decode step goes, by PyTorch's profiler: products, attention, other operations, and Python between."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.style import seconds
from course.lessons.lesson_06 import traffic
from minillm import Engine, SamplingParams
from minillm.core.brief import brief
from minillm.kernels.attention.base import AttentionBackend
from minillm.model.linear import AnyLinear

PRODUCT, ATTENTION, OTHER, PYTHON = "matrix products", "attention", "other operations", "between operations (Python)"
WARM, STEPS = 6, 8
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler writes into the notebook when it starts and stops
OP_BY_OP = {"fused_kernels": False, "cuda_graphs": False}
"""Engine fields under which Python launches every operation of every layer by itself."""


@dataclass(frozen=True)
class StepProfile:
    """The mean of some decode steps of one batch."""

    batch: int
    seconds: dict[str, float]
    """By part, in the order of the constants above."""
    calls: Mapping[str, float]
    trace: Any
    """Of torch.profiler, to export."""

    __repr__ = brief

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def save(self, path: str = "decode_step.json") -> str:
        """Write it for ui.perfetto.dev, and say where."""
        self.trace.export_chrome_trace(path)
        return f"{Path(path).resolve()}: open it in https://ui.perfetto.dev"


def profile_steps(lab: Lab, batch: int) -> StepProfile:
    """Profile an engine that launches operation by operation: inside one call for all layers there'd be nothing to see.

    Times are the host's: on a GPU those of launching.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with decoding(lab, batch, WARM + STEPS, **OP_BY_OP) as engine:
        for _ in range(WARM):
            engine.step()
        with _labelled(), profile(activities=activities) as trace:
            for _ in range(STEPS):
                with record_function(PYTHON):
                    engine.step()
    spent = dict.fromkeys((PRODUCT, ATTENTION, OTHER, PYTHON), 0.0)
    calls = Counter[str]()
    for event in trace.events():
        name = event.name if event.name in spent else OTHER
        if event.cpu_parent is None or event.cpu_parent.name == PYTHON:  # the outermost in a step
            spent[name] += event.cpu_time_total / 1e6 / STEPS
            spent[PYTHON] -= (name != PYTHON) * event.cpu_time_total / 1e6 / STEPS
            calls[name] += 1 / STEPS
    del calls[PYTHON]
    return StepProfile(batch, spent, calls, trace)


@contextmanager
def decoding(lab: Lab, batch: int, steps: int, **fields: Any) -> Iterator[Engine]:
    """An engine of its own with requests that decode side by side; nothing is scheduled ahead."""
    work = traffic.side_by_side(batch)
    with lab.alone():
        engine = lab.engine(async_scheduling=False, **traffic.room(work), **fields)
        for arrival in work.arrivals:
            engine.add_request(arrival.prompt, SamplingParams(max_tokens=steps + 2, temperature=0, ignore_eos=True))
        yield engine
        engine.close()


@contextmanager
def _labelled() -> Iterator[None]:
    """Products and attention under names of their own: they're our C++ here, which the profiler doesn't know."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(AnyLinear, "__call__", _named(PRODUCT, torch.nn.Module.__call__)))
        for backend in AttentionBackend.__subclasses__():
            patches.enter_context(patch.object(backend, "attend", _named(ATTENTION, backend.attend)))
        yield


def _named(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return call(*args, **kwargs)

    return recorded


def profile_table(found: StepProfile) -> Html:
    """Time and launches of a step, by part."""
    rows = [
        (part, seconds(spent), f"{spent / found.total:.0%}", f"{found.calls.get(part, 0):.0f}")
        for part, spent in found.seconds.items()
    ]
    return as_table((f"one step, batch {found.batch}", "time", "share", "calls"), rows)

"""Where one real decode step goes, by PyTorch's profiler: products, attention, other operations, and Python between."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.lesson_06 import traffic
from course.lab.style import seconds
from minillm import SamplingParams
from minillm.kernels.attention.base import AttentionBackend
from minillm.model.linear import AnyLinear

PRODUCT, ATTENTION, OTHER, PYTHON = "matrix products", "attention", "other operations", "between operations (Python)"
WARM, STEPS = 6, 8
OP_BY_OP = {"fused_kernels": False, "cuda_graphs": False}
"""Engine fields under which Python launches every operation of every layer by itself."""


@dataclass(frozen=True)
class StepProfile:
    """The mean of some decode steps of one batch."""

    batch: int
    seconds: dict[str, float]
    """By part, in the order of the constants above."""
    calls: dict[str, float]
    trace: Any
    """Of torch.profiler, to export."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def save(self, path: str = "decode_step.json") -> str:
        """Write it for ui.perfetto.dev, and say where."""
        self.trace.export_chrome_trace(path)
        return f"{Path(path).resolve()}: open it in https://ui.perfetto.dev"


def profile_steps(lab: Lab, batch: int) -> StepProfile:
    """Profile an engine of its own that launches operation by operation: inside one call there'd be nothing to see."""
    work = traffic.side_by_side(batch)
    params = SamplingParams(max_tokens=WARM + STEPS + 2, temperature=0, ignore_eos=True)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with lab.alone():
        engine = lab.engine(async_scheduling=False, **traffic.room(work), **OP_BY_OP)
        for arrival in work.arrivals:
            engine.add_request(arrival.prompt, params)
        for _ in range(WARM):
            engine.step()
        with _labelled(), profile(activities=activities) as trace:
            for _ in range(STEPS):
                with record_function("step"):
                    engine.step()
        engine.close()
    spent, calls = (
        dict.fromkeys((PRODUCT, ATTENTION, OTHER, PYTHON), 0.0),
        dict.fromkeys((PRODUCT, ATTENTION, OTHER), 0.0),
    )
    for event in trace.events():
        name = event.name if event.name in spent or event.name == "step" else OTHER
        if event.cpu_parent is None or event.cpu_parent.name == "step":
            spent[PYTHON if name == "step" else name] += event.cpu_time_total / 1e6 / STEPS
            if name != "step":
                spent[PYTHON] -= event.cpu_time_total / 1e6 / STEPS
                calls[name] += 1 / STEPS
    return StepProfile(batch, spent, calls, trace)


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

"""`minillm bench idle`: how much of a steady decode the GPU works, and how much it waits for Python."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType

from minillm.bench.report import Measured
from minillm.bench.steady import SteadyDecode, pool_tokens
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.frontend.engine import Engine

STEPS = 64
WARM_UP_STEPS = 16


@dataclass(frozen=True, slots=True)
class IdleResult:
    """Over some steady steps."""

    batch: int
    span_s: float
    """From the first kernel's start to the last one's end."""
    busy_s: float
    """Of that, seconds in which some kernel or copy ran."""
    busy_share: float
    num_kernels: int


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Total length of intervals (start, end) that may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def run(target: Target, quick: bool, batch: int, context: int) -> Measured:
    """Profile a steady decode.

    Raises:
        ConfigError: the device is not a GPU: on a CPU, Python and the model share the processor.
    """
    if target.torch_device().type != "cuda":
        raise ConfigError("bench idle looks at a GPU: on a CPU the engine and the model take turns on one processor")
    steps = 8 if quick else STEPS
    total = WARM_UP_STEPS + steps + 4  # each run begins with a step that it does not count
    budget = max(8192, batch)
    tokens = pool_tokens(batch, context, total, budget)
    engine = Engine(target.config(kv_tokens=tokens, max_num_seqs=batch, max_num_batched_tokens=budget))
    decode = SteadyDecode(engine, batch, context, total)
    decode.run(WARM_UP_STEPS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decode.run(steps)
        torch.cuda.synchronize()
    decode.stop()
    events = [event.time_range for event in profile.events() if event.device_type == DeviceType.CUDA]
    intervals = [(event.start / 1e6, event.end / 1e6) for event in events]
    span = max(end for _, end in intervals) - min(start for start, _ in intervals)
    busy = union_seconds(intervals)
    result = IdleResult(batch, span, busy, busy / span, len(intervals))
    return Measured.on(engine, result, {"context": context, "steps": steps})


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    result: IdleResult = report["results"]
    return (
        f"{report['model']} in {report['dtype']} on {report['device']}, steady decode at batch {result.batch}: the GPU "
        f"was busy {result.busy_share:.1%} of {1e3 * result.span_s:.1f} ms ({result.num_kernels} kernels and copies)"
    )

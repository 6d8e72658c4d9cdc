"""How long a GPU waits for Python in a steady decode: the gaps between its kernels, by PyTorch's profiler."""

from collections.abc import Iterable

import torch

from minillm.bench.steady import SteadyDecode

SHORTEST_GAP_S = 10e-6
"""Shorter gaps are no idleness: in a CUDA graph, too, a kernel begins a microsecond or two after the one before has
ended, and waits for nothing."""


def idle_share(intervals: Iterable[tuple[float, float]]) -> float:
    """The share of the time from first start to last end in which nothing ran, short gaps left out.

    Args:
        intervals: at least one (start, end), seconds; they may overlap, in any order.
    """
    (begin, reached), *rest = sorted(intervals)
    idle = 0.0
    for start, end in rest:
        if start - reached >= SHORTEST_GAP_S:
            idle += start - reached
        reached = max(reached, end)
    return idle / (reached - begin)


def kernel_times(decode: SteadyDecode, num_steps: int) -> list[tuple[float, float]]:
    """Start and end, seconds, of each kernel and copy that the GPU runs in some steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decode.run(num_steps)
    times = [event.time_range for event in profile.events() if event.device_type.name == "CUDA"]
    return [(each.start / 1e6, each.end / 1e6) for each in times]

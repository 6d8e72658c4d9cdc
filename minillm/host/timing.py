"""Seconds per call, on the device that does the work."""

import math
import time
from collections.abc import Callable

import torch

QUEUE_CYCLES = 5_000_000
"""A GPU sleeps for so long (about 3 ms) while the calls to be timed are queued up behind."""


def seconds_per_call(work: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Mean seconds of one of `calls` consecutive calls.

    On a GPU by events on its own clock, with the calls queued before the first one starts: launching
    from Python, which a CUDA graph saves, is not in it (as far as the queue is long enough).
    """
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(QUEUE_CYCLES)
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


def best_seconds(work: Callable[[], object], device: torch.device, repeats: int, lasting_s: float = 0.0) -> float:
    """The fastest of `repeats` calls: anything else that runs can only slow one down.

    Args:
        lasting_s: time as many calls as take this long, back to back, as if they were one. A processor that has just
            rested starts at a higher clock than it can keep.
    """
    work()  # The first touch makes the pages, loads the kernel.
    calls = max(1, math.ceil(lasting_s / seconds_per_call(work, device)))
    return min(seconds_per_call(work, device, calls) for _ in range(repeats))

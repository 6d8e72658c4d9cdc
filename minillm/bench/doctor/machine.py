"""Processor, memory, GPU."""

import os
import platform
import sys
from collections.abc import Iterator

import psutil

from minillm.bench.doctor.check import GB, Check
from minillm.kernels.device import available_bytes

GROUP = "machine"
ENOUGH_MEMORY = 1_500_000_000
"""Bytes: the default model, its KV cache and PyTorch."""


def machine() -> Iterator[Check]:
    """Python, processor and memory."""
    yield Check(GROUP, "python", "ok", f"{platform.python_version()} ({sys.executable})")  # pip refuses older ones
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    yield Check(GROUP, "processor", "ok", f"{platform.machine()}, {cores} cores, {os.cpu_count()} threads")
    available = available_bytes()
    found = f"{psutil.virtual_memory().total / GB:.1f} GB, {available / GB:.1f} GB available"
    if available >= ENOUGH_MEMORY:
        yield Check(GROUP, "memory", "ok", found)
    else:
        wanted = f"the default model wants {ENOUGH_MEMORY / GB:.1f} GB"
        yield Check(GROUP, "memory", "absent", found, f"{wanted}: close something, or --set kv_cache_memory_gb=0.2")

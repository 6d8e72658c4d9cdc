"""Processor, memory, GPU."""

import os
import platform
import sys
from collections.abc import Iterator

import psutil

from minillm.doctor.check import Check

GROUP = "machine"
GB = 1_000_000_000
ENOUGH_MEMORY = 1_500_000_000
"""Bytes: the default model, its KV cache and PyTorch."""


def machine() -> Iterator[Check]:
    """Python, processor and memory."""
    yield Check(GROUP, "python", "ok", f"{platform.python_version()} ({sys.executable})")  # pip refuses older ones
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    yield Check(GROUP, "processor", "ok", f"{platform.machine()}, {cores} cores, {os.cpu_count()} threads")
    memory = psutil.virtual_memory()
    found = f"{memory.total / GB:.1f} GB, {memory.available / GB:.1f} GB available"
    if memory.available >= ENOUGH_MEMORY:
        yield Check(GROUP, "memory", "ok", found)
    else:
        wanted = f"the default model wants {ENOUGH_MEMORY / GB:.1f} GB"
        yield Check(GROUP, "memory", "absent", found, f"{wanted}: close something, or --set kv_cache_memory_gb=0.2")

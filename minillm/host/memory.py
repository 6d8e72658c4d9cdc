"""Host memory: what is free of it, and what a process keeps.

Docker, Binder and Kubernetes limit a container by a control group. /proc/meminfo, and so psutil, still tells of the
whole machine: a program that believes it is killed. Files: the kernel's admin-guide/cgroup-v2.rst ("Memory Interface
Files") and cgroup-v1/memory.rst.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_ON_THE_HEAP = 32 * 2**20
"""Bytes: glibc 2.36 takes no higher M_MMAP_THRESHOLD on 64 bits."""
KEPT = 256 * 2**20
"""Freed bytes that stay with the process: more than a step's activations."""


def keep_freed_memory() -> None:
    """Have malloc keep what PyTorch frees, for the next operation. By default it gives tensors of megabytes back to the
    kernel, and takes them anew a moment later: 20,000 page faults in a step of 1,024 tokens of SmolLM2-135M, 4%
    of its time. Holds for the whole process from then on. Does something on Linux with glibc only (man 3 mallopt).
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_THRESHOLD, LARGEST_ON_THE_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def available_bytes(root: Path = ROOT) -> int:
    """Bytes of host memory that a program may still take before something gets killed.

    Args:
        root: where /proc and /sys are, for tests.
    """
    return min([psutil.virtual_memory().available, *cgroup_room(root)])


def cgroup_room(root: Path = ROOT) -> Iterator[int]:
    """Free bytes of this process's control group and of the groups around it, those with a limit. Cached pages of
    files count as free, as in /proc/meminfo's MemAvailable: the kernel drops them before it kills anything. A model's
    own file, read a moment ago, is most of them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _walk(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            yield from _walk(root / "sys/fs/cgroup/memory", path, *files)


def _walk(mount: Path, path: str, limit: str, usage: str, prefix: str = "") -> Iterator[int]:
    """Bytes that each limit leaves, from the group up to the mount point. In a container the path may be the host's,
    which isn't there.

    Args:
        prefix: of memory.stat's keys that count the groups below as well.
    """
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        try:
            most = (group / limit).read_text().strip()
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:
            most = "max"
        if most != "max":
            cached = sum(int(stat.get(f"{prefix}{age}_file", 0)) for age in ("active", "inactive"))
            yield max(0, int(most) - used + cached)
        if group == mount:
            return

"""How much memory there is to take: the machine's, or less where a container has a limit of its own.

Docker, Binder and Kubernetes limit a container by a control group. /proc/meminfo, and so psutil, still
tells of the whole machine: who believes it is killed. Files: the kernel's admin-guide/cgroup-v2.rst
("Memory Interface Files") and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Of one control group, bytes."""

    limit: int
    used: int
    """Without what the kernel would give back at once: file pages that nobody has used for a while."""

    @property
    def room(self) -> int:
        return max(0, self.limit - self.used)


def available_bytes(root: Path = ROOT) -> int:
    """Bytes of host memory that a program may still take before something gets killed.

    Args:
        root: where /proc and /sys are, for tests.
    """
    return min([psutil.virtual_memory().available, *(group.room for group in limited_groups(root))])


def limited_groups(root: Path = ROOT) -> Iterator[GroupMemory]:
    """This process's control group and the groups around it, those with a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _walk(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _walk(root / "sys/fs/cgroup/memory", path, *files)


def _walk(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[GroupMemory]:
    """From the group up to the mount point. In a container the path may be the host's, which is not there."""
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        try:
            most = (group / limit).read_text().strip()
            used = int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:
            most = "max"
        if most != "max":
            yield GroupMemory(int(most), used - int(stat.get(reclaimable, 0)))
        if group == mount:
            return

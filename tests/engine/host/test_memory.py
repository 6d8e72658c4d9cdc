"""Memory that may be taken: a container's limit counts, not only the machine's memory."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from minillm.host import memory

MB = 2**20


def write(root: Path, group: str, **files: str) -> None:
    folder = root / group
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without any limit."""
    write(tmp_path, "proc/self", cgroup="0::/pod/container\n")
    return tmp_path


def limit(root: Path, group: str, most: str, used_mb: int, reclaimable_mb: int = 0) -> None:
    read_once = reclaimable_mb // 3
    stat = f"anon 7\ninactive_file {read_once * MB}\nactive_file {(reclaimable_mb - read_once) * MB}\n"
    write(root, f"sys/fs/cgroup{group}", memory__max=most, memory__current=str(used_mb * MB), memory__stat=stat)


def test_without_a_limit_it_is_the_machines(root: Path) -> None:
    limit(root, "/pod/container", "max\n", 100)
    assert list(memory.cgroup_room(root)) == []
    assert memory.available_bytes(root) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


CONTAINER = "/pod/container"
GROUPS: dict[str, tuple[list[tuple[str, int, int, int]], int]] = {
    "the narrowest group around us counts": ([(CONTAINER, 64, 60, 10), ("/pod", 32, 20, 0)], 12),
    "what the kernel would give back is not used": ([(CONTAINER, 64, 64, 14)], 14),
    "above the limit there is none": ([(CONTAINER, 64, 65, 0)], 0),
    "in a container the path is the host's and the mount is ours": ([("", 64, 24, 0)], 40),
}
"""Groups: (path, limit, used, reclaimable), and what is left; MB."""


@pytest.mark.parametrize("what", GROUPS)
def test_a_limit_counts(root: Path, what: str) -> None:
    groups, left = GROUPS[what]
    for path, most, used, reclaimable in groups:
        limit(root, path, f"{most * MB}\n", used, reclaimable)
    assert memory.available_bytes(root) == left * MB


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self", cgroup="9:cpu:/else\n4:hugetlb,memory:/docker/1\n0::/\n")
    write(
        tmp_path,
        "sys/fs/cgroup/memory/docker/1",
        memory__limit_in_bytes=str(64 * MB),
        memory__usage_in_bytes=str(32 * MB),
        memory__stat=f"active_file 7\ntotal_inactive_file {MB}\ntotal_active_file {3 * MB}\n",
    )
    assert memory.available_bytes(tmp_path) == 36 * MB


def test_no_such_files(tmp_path: Path) -> None:
    assert list(memory.cgroup_room(tmp_path)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's malloc that gives memory back")
def test_memory_that_was_freed_is_used_again() -> None:
    """Tensors of 20 MB and 4 MB in turns: unless malloc keeps memory, each such round takes pages anew."""
    rounds = (
        "import resource, torch\n"
        "from minillm.host.memory import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "def play(times):\n"
        "    for _ in range(times): a, b = torch.zeros(5 * 2**20), torch.zeros(2**20); del a; c = torch.zeros(2**20)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "print(-play(5) + play(200))\n"
    )
    faults = int(subprocess.run([sys.executable, "-c", rounds], capture_output=True, text=True, check=True).stdout)
    assert faults < 40_000, "110,000 without"

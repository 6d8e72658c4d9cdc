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
    stat = f"anon 7\ninactive_file {reclaimable_mb * MB}\n"
    write(root, f"sys/fs/cgroup{group}", memory__max=most, memory__current=str(used_mb * MB), memory__stat=stat)


def test_without_a_limit_it_is_the_machines(root: Path) -> None:
    limit(root, "/pod/container", "max\n", 100)
    assert list(memory.cgroup_room(root)) == []
    assert memory.available_bytes(root) == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_narrowest_group_around_us_counts(root: Path) -> None:
    limit(root, "/pod/container", f"{64 * MB}\n", used_mb=60, reclaimable_mb=10)
    limit(root, "/pod", f"{32 * MB}\n", used_mb=20)
    assert memory.available_bytes(root) == 12 * MB


def test_what_the_kernel_would_give_back_is_not_used(root: Path) -> None:
    limit(root, "/pod/container", str(64 * MB), used_mb=64, reclaimable_mb=14)
    assert memory.available_bytes(root) == 14 * MB


def test_above_the_limit_there_is_none(root: Path) -> None:
    limit(root, "/pod/container", str(64 * MB), used_mb=65)
    assert memory.available_bytes(root) == 0


def test_in_a_container_the_path_is_the_hosts_and_the_mount_is_ours(root: Path) -> None:
    limit(root, "", str(64 * MB), used_mb=24)
    assert memory.available_bytes(root) == 40 * MB


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self", cgroup="9:cpu:/else\n4:hugetlb,memory:/docker/1\n0::/\n")
    write(
        tmp_path,
        "sys/fs/cgroup/memory/docker/1",
        memory__limit_in_bytes=str(64 * MB),
        memory__usage_in_bytes=str(32 * MB),
        memory__stat=f"total_inactive_file {4 * MB}\n",
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
        "print(-play(5) + play(20))\n"
    )
    faults = int(subprocess.run([sys.executable, "-c", rounds], capture_output=True, text=True, check=True).stdout)
    assert faults < 1_000

"""`make binder-check`: build what Binder builds, in a fresh folder, and run notebooks in it with 2 GB of memory.

The commands are those of repo2docker's Dockerfile (`jupyter-repo2docker --debug --no-build .` prints it), on a fresh
clone, with a fresh home. What differs: a virtual environment takes the place of its conda environment, so what conda
brings along is only tried as far as pip installs it too, and this machine that of its Ubuntu image.

JupyterLab and the kernels run in one control group of 2 GiB, in which the kernel kills who takes more; where none can
be made (it takes root), a watcher does. Memory is PSS: each page is shared out among the processes that map it.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = (
    "course/00_start_here.ipynb",
    "course/01_two_numbers.ipynb",
    "course/06_decode.ipynb",
    "solutions/01_two_numbers.ipynb",
)
LIMIT_GB = 2.0
GIB = 2**30
SAMPLE_S = 0.5
PASSED_ON = ("PIP_", "http_proxy", "https_proxy", "no_proxy")
"""Beginnings of the variables that come along: how to reach the package index."""


@dataclass(slots=True)
class Outcome:
    notebook: str
    status: int
    """Of `jupyter execute`; 0 = every cell ran."""
    peak_bytes: int
    """PSS of JupyterLab and the kernel together."""
    seconds: float


@dataclass
class Group:
    """A control group with a memory limit; without the right to make one, only a watcher."""

    limit: int
    folder: Path | None = None
    peak: int = 0
    pids: list[int] = field(default_factory=list)
    """Of the processes that were started in it: the roots of its trees."""

    @property
    def kind(self) -> str:
        return "a watcher of PSS" if self.folder is None else f"a control group ({self.folder})"

    def start(self, command: list[str], **options: object) -> subprocess.Popen:
        def enter() -> None:
            if self.folder is not None:
                (self.folder / "cgroup.procs").write_text(str(os.getpid()))

        process = subprocess.Popen(command, preexec_fn=enter, start_new_session=True, **options)
        self.pids.append(process.pid)
        return process

    def watch(self, ended: threading.Event) -> None:
        """Sample until `ended`; kill everything above the limit if no control group does."""
        while not ended.wait(SAMPLE_S):
            now = sum(map(pss, trees(self.pids)))
            self.peak = max(self.peak, now)
            if self.folder is None and now > self.limit:
                for pid in trees(self.pids):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def limited_group(limit: int) -> Iterator[Group]:
    """A control group of version 2 or 1, under the one that this process is in."""
    for mount, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        folder = Path(mount) / f"binder-check-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if not (folder / file).exists():  # no control group: a plain folder, or one without a memory controller
            folder.rmdir()
            continue
        (folder / file).write_text(str(limit))
        try:
            yield Group(limit, folder)
        finally:
            for _ in range(50):  # it cannot go before its last process has
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)
        return
    yield Group(limit)


def trees(roots: list[int]) -> list[int]:
    """The processes that `roots` are the ancestors of, and themselves."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], list(roots)
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def pss(pid: int) -> int:
    """Bytes; 0 if the process has gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def build(folder: Path) -> tuple[Path, dict[str, str]]:
    """Clone, environment, requirements, postBuild. Returns the clone and the environment's variables."""
    clone, venv = folder / "minillm", folder / "venv"
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    environment |= {
        "HOME": str(folder / "home"),
        "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
    }
    Path(environment["HOME"]).mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    python = (clone / "binder/runtime.txt").read_text().strip().replace("-", "")
    subprocess.run([shutil.which(python) or sys.executable, "-m", "venv", str(venv)], check=True)
    requirements = ["pip", "install", "--no-cache-dir", "-r", "binder/requirements.txt"]
    for command in (requirements, ["binder/postBuild"]):
        print("$", *command, flush=True)
        subprocess.run(command, cwd=clone, env=environment, check=True)
    return clone, environment


def run_notebooks(
    clone: Path, environment: dict[str, str], notebooks: list[str], limit: int
) -> tuple[str, list[Outcome]]:
    """Each by itself beside a JupyterLab, with one processor, as Binder gives. Returns who held the limit, too."""
    environment = {**environment, "CPU_LIMIT": "1.0", "MEM_LIMIT": str(limit)}
    outcomes = []
    with limited_group(limit) as group, tempfile.TemporaryFile() as log:
        server = ["binder/start", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0", "--log-level=ERROR"]
        lab = group.start(server, cwd=clone, env=environment, stdout=log, stderr=log)
        for notebook in notebooks:
            group.peak, began, ended = 0, time.monotonic(), threading.Event()
            watcher = threading.Thread(target=group.watch, args=(ended,))
            watcher.start()
            command = ["binder/start", "jupyter", "execute", "--timeout=1800", notebook]
            status = group.start(command, cwd=clone, env=environment).wait()
            ended.set()
            watcher.join()
            alive = lab.poll() is None
            outcomes.append(Outcome(notebook, status or (0 if alive else 1), group.peak, time.monotonic() - began))
            print(describe(outcomes[-1], limit), flush=True)
            if not alive:
                print("JupyterLab itself was killed", file=sys.stderr)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(lab.pid, signal.SIGTERM)
        lab.wait()
        return group.kind, outcomes


def describe(outcome: Outcome, limit: int) -> str:
    verdict = "ran" if outcome.status == 0 else f"FAILED (status {outcome.status})"
    return f"{outcome.notebook}: {verdict}, peak {outcome.peak_bytes / GIB:.2f} of {limit / GIB:.2f} GiB"


def record(
    outcomes: list[Outcome], held_by: str, limit: int, short: bool, environment: dict[str, str]
) -> dict[str, object]:
    """For course/data/measured/."""
    freeze = subprocess.run(["pip", "freeze"], env=environment, check=True, capture_output=True, text=True).stdout
    wanted = ("torch", "jupyterlab", "ipykernel", "ipywidgets", "transformers")
    versions = dict(line.split("==") for line in freeze.splitlines() if line.split("==")[0] in wanted)
    python = subprocess.run(["python", "--version"], env=environment, check=True, capture_output=True, text=True).stdout
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": python.split()[1], **versions},
        "command": f"make binder-check{' BINDER_CHECK_ARGS=--short' if short else ''}",
        "limit_bytes": limit,
        "limit_held_by": held_by.split(" (")[0],
        "short": short,
        "peak_pss_bytes": {outcome.notebook: outcome.peak_bytes for outcome in outcomes},
        "all_cells_ran": {outcome.notebook: outcome.status == 0 for outcome in outcomes},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("notebooks", nargs="*", default=list(NOTEBOOKS))
    parser.add_argument("--limit-gb", type=float, default=LIMIT_GB, help="GiB; Binder gives 1 to 2")
    parser.add_argument("--short", action="store_true", help="small workloads, as the tests play them")
    parser.add_argument("--keep", type=Path, help="build here, and leave it; if it is there, build nothing")
    parser.add_argument("--out", type=Path, help="write the record here")
    options = parser.parse_args()
    limit = int(options.limit_gb * GIB)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="binder-check-")))
        if (folder / "built.json").exists():
            clone, environment = folder / "minillm", json.loads((folder / "built.json").read_text())
        else:
            folder.mkdir(parents=True, exist_ok=True)
            clone, environment = build(folder.resolve())
            (folder / "built.json").write_text(json.dumps(environment))
        short = {"MINILLM_SHORT": "1"} if options.short else {}
        held_by, outcomes = run_notebooks(clone, environment | short, options.notebooks, limit)
        print(f"the limit was held by {held_by}")
        if options.out:
            found = record(outcomes, held_by, limit, options.short, environment)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if len(outcomes) == len(options.notebooks) and not any(outcome.status for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Grades an answer in a process of its own, which may hang, crash, or print for ever.

The parent trusts nothing but the messages it can read. That is no protection against an answer that wants to cheat:
answer and checker share the child. It protects the learner's session from accidents.
"""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import course
from course.lab.grading import Criterion
from course.lab.grading.exercise import Exercise

START_LIMIT_S = 30.0
"""For Python to start and import the exercise: our part, so it is long."""
KEPT_OUTPUT = 2000
"""Characters of what an answer prints that are shown."""
GLANCE_S = 0.05
"""How often the parent looks at the child's clock while it is silent."""


@dataclass(frozen=True)
class Submission:
    """An answer on its way to the child, as JSON."""

    task: dict[str, Any]
    """`lines`: the learner's source texts by file name. `pickle`: names and objects; without it the one file is run."""

    @classmethod
    def of_text(cls, text: str, path: str) -> "Submission":
        """A file's text; its path appears in tracebacks."""
        return cls({"lines": {path: text}})


@dataclass(frozen=True)
class Graded:
    """What came back."""

    criteria: tuple[Criterion, ...]
    printed: str
    """What the answer printed, cut off where it is long."""


class Worker:
    """A child process. `with Worker() as worker: worker.grade(...)`; one that was killed is started anew.

    Learners' answers get a worker each. The tests of many answers share one, which saves its start.
    """

    def __init__(self) -> None:
        self._child: _Child | None = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def grade(self, exercise: Exercise, submission: Submission, seed: int) -> Graded:
        """Never raises for an answer, whatever it does."""
        if self._child is None:
            self._child = _Child()
        child = self._child
        child.printed.forget()
        criteria: list[Criterion] = []
        try:
            child.tell({**submission.task, "exercise": exercise.id, "seed": seed})
            trouble = _listen(child, exercise, criteria)
        except BaseException:  # Ctrl-C: nothing waits for it any more
            self._end()
            raise
        if trouble is not None:
            self._end()
        return Graded(_completed(exercise, criteria, trouble), child.printed.text())

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _listen(child: "_Child", exercise: Exercise, criteria: list[Criterion]) -> str | None:
    """Collect criteria until the child is done. Returns what went wrong with the process, if anything did."""
    began, ready = child.own_seconds(), False
    while True:
        limit = exercise.limit_s if ready else START_LIMIT_S
        message = child.hear()
        if message is None:
            if child.own_seconds() - began > limit:
                return _still_busy(child, exercise.limit_s) if ready else "the checker did not start"
        elif "ready" in message:
            began, ready = child.own_seconds(), True
        elif "part" in message:
            part = exercise.parts[len(criteria)]
            earned = min(max(float(message["earned"]), 0.0), part.points)
            criteria.append(Criterion(part.name, earned, part.points, str(message["feedback"])))
        elif "failed" in message:
            criteria += exercise.ungraded(message["failed"])
        elif "done" in message:
            return None
        elif "ended" in message:
            return _how_it_ended(message["ended"], child.printed.text() if not ready else "")


def _still_busy(child: "_Child", limit_s: float) -> str:
    place = child.where()
    return f"stopped: not done after {limit_s:g} s{place}. An endless loop, or far more work than needed?"


def _how_it_ended(status: int, said: str) -> str:
    if said:
        return f"the checker did not start: {said[-KEPT_OUTPUT:]}"
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}: too much memory, or a crash in compiled code"
    return "your code ended the whole process: return a value instead"


def _completed(exercise: Exercise, criteria: list[Criterion], trouble: str | None) -> tuple[Criterion, ...]:
    """A criterion for every part: those that came, the one in which it ended, those that were never reached."""
    for part in exercise.parts[len(criteria) :]:
        stopped_at = exercise.parts[len(criteria)] if trouble else None
        words = trouble if trouble and part is stopped_at else "not reached: the part before never ended"
        criteria.append(Criterion(part.name, 0.0, part.points, words))
        trouble = None
    return tuple(criteria)


class _Child:
    """The process, its messages and its clock."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="minillm-check-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "course.lab.grading.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,
            env=_environment(),
            start_new_session=True,  # so that its own children end with it, and Ctrl-C is ours
        )
        self._born = time.monotonic()
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.printed = _Printed(self._process.stderr)
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, task: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has died already: hear() says so
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any] | None:
        """The next message; None when it has been silent for a moment."""
        try:
            return self._messages.get(timeout=GLANCE_S)
        except queue.Empty:
            status = self._process.poll()
            return None if status is None or not self._messages.empty() else {"ended": status}

    def own_seconds(self) -> float:
        """How long it has lived, without the time it waited for others to leave it a core (as far as Linux tells)."""
        waited = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited = int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9
        return time.monotonic() - self._born - waited

    def where(self) -> str:
        """Which line of the learner's is running; empty where it can't be told."""
        if not hasattr(signal, "SIGUSR1"):
            return ""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
            frames = Path(self._folder.name, "where.txt").read_text()
            for file, line, function in re.findall(r'File "(.*?)", line (\d+) in (\S+)', frames):
                # Innermost first. What is installed is not the learner's.
                if not file.startswith((sys.prefix, sys.base_prefix, str(_root()), "<frozen")):
                    return f", in line {line}, in `{function}`"
        return ""

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._folder.cleanup()

    def _read(self) -> None:
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._messages.put(json.loads(line))


class _Printed:
    """The beginning of what the child prints; the rest is read too, so that it never waits."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        threading.Thread(target=self._read, daemon=True).start()

    def forget(self) -> None:
        self._kept = b""

    def text(self) -> str:
        said = self._kept.decode("utf-8", "replace")
        return said if len(said) <= KEPT_OUTPUT else said[:KEPT_OUTPUT] + "\n... (and more)"

    def _read(self) -> None:
        while chunk := self._pipe.read1(1 << 16):
            if len(self._kept) <= KEPT_OUTPUT:
                self._kept += chunk


def _root() -> Path:
    """The folder that `course` is imported from."""
    return Path(course.__file__).resolve().parents[1]


def _environment() -> dict[str, str]:
    """The child imports what the parent can, starting elsewhere; one thread; the same order of sets every time."""
    path = os.pathsep.join(dict.fromkeys([str(_root()), *(os.path.abspath(entry) for entry in sys.path)]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"}  # fmt: skip

"""Grades an answer that runs in a process of its own, which may hang, crash, or print for ever.

Judges, references and comparisons stay in this process; the child only calls the answer (child.py). So an answer can
forge nothing but its own results. That is no proof against cheating, which needs no check at all: it is your machine.
"""

import contextlib
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NoReturn

import psutil

import course
from course.grading import Criterion
from course.grading.blame import explain
from course.grading.exercise import Exercise
from course.grading.remote import Answer, AnswerEndedError

START_LIMIT_S = 180.0
"""For Python to start and import the exercise: our part, so it is long."""
KEPT_OUTPUT = 2000
"""Characters of what an answer prints that are shown."""
NOTHING: Mapping[str, str] = MappingProxyType({})
HEADER = 20
"""Bytes of a message before its content: a nonce and a length."""
GLANCE_S = 0.05
"""How often the parent looks at the child's clocks while it is silent."""
IDLE_FACTOR, IDLE_S = 5, 15.0
"""An answer that waits (it sleeps, or has locked itself out) takes no CPU. It is stopped after IDLE_FACTOR times its
limit and IDLE_S more, in which it could have computed: time that it waited for a core doesn't count (on Linux)."""


@dataclass(frozen=True)
class Submission:
    """An answer on its way to the child, as JSON."""

    task: dict[str, Any]
    """`lines`: the learner's source texts by file name. `pickle`: names and objects; without it the one file is run."""

    @classmethod
    def of_text(cls, text: str, path: str, *, closed_in: bool = False) -> "Submission":
        """A file's text; its path appears in tracebacks.

        Args:
            closed_in: it reaches no clock, no file, and few modules (confine.py).
        """
        return cls({"lines": {path: text}, "closed_in": closed_in})


@dataclass(frozen=True)
class Graded:
    """What came back."""

    criteria: tuple[Criterion, ...]
    printed: str
    """What the answer printed, cut off where it is long."""


class GradingWorker:
    """Grades answers. `with GradingWorker() as worker: worker.grade(...)`; a child that was killed is started anew.

    Learners' answers get a worker each. The tests of many answers share one, which saves its start.
    """

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}

    def __enter__(self) -> "GradingWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def grade(self, exercise: Exercise, submission: Submission, seed: int) -> Graded:
        """Never raises for an answer, whatever it does."""
        if exercise.missing is not None:
            return Graded(exercise.ungraded(exercise.missing), "")
        criteria: list[Criterion] = []
        try:
            _ = exercise.module  # the judges stay in this process
            try:
                answer = self._loaded(exercise, submission)
            except Exception as error:
                criteria += exercise.ungraded(explain(error))
            else:
                criteria += exercise.grade(answer, seed)
        except AnswerEndedError as error:
            criteria += exercise.ungraded(str(error))
        except BaseException:  # Ctrl-C: nothing waits for it any more
            self._end()
            raise
        return Graded(tuple(criteria), self.printed)

    def _loaded(self, exercise: Exercise, submission: Submission, hash_seed: str = "0") -> Answer:
        needed = dict(exercise.environment), list(exercise.needs)
        return self.load(submission, exercise.limit_s, exercise.memory_mb, *needed, hash_seed)

    def load(
        self,
        submission: Submission,
        limit_s: float,
        memory_mb: int,
        environment: Mapping[str, str] = NOTHING,
        needs: Sequence[str] = (),
        hash_seed: str = "0",
    ) -> Answer:
        """A child with the answer in it; another order of sets and hashes, and another process, with another seed.

        Args:
            limit_s: CPU seconds on a fast core that all questions may take together.
            memory_mb: what it may need beyond Python itself.
            needs: modules that are imported beforehand.
        Raises:
            AnswerEndedError: its process hangs, or has ended.
            Exception: what the answer raised while it was loaded.
        """
        child = self._child(hash_seed)
        child.printed.forget()
        again = partial(self.load, submission, limit_s, memory_mb, environment, needs, "1")
        answer = Answer(child.exchange, START_LIMIT_S, again)
        slowness = answer.value(answer.ask("prepare", dict(environment), list(needs), memory_mb)[0])
        child.limit_s = answer.left_s = limit_s * slowness
        answer.load(submission.task)
        return answer

    @property
    def printed(self) -> str:
        """What the answer has printed, cut off where it is long."""
        return self._child("0").printed.text()

    def _child(self, hash_seed: str) -> "_Child":
        if hash_seed not in self._children or self._children[hash_seed].has_ended:
            self._children[hash_seed] = _Child(hash_seed)
        return self._children[hash_seed]

    def _end(self) -> None:
        for child in self._children.values():
            child.kill()
        self._children.clear()


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}: too much memory, or a crash in compiled code"
    return "your code ended the whole process: return a value instead"


class _Child:
    """The process, its messages and its clock."""

    def __init__(self, hash_seed: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="minillm-check-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,
            env=_environment(hash_seed),
            start_new_session=True,  # so that its own children end with it, and Ctrl-C is ours
        )
        self._born = time.monotonic()
        self.printed = _Printed(self._process.stderr)
        self.has_ended, self.limit_s = False, START_LIMIT_S

    def exchange(self, message: bytes, limit_s: float) -> bytes:
        """Ask, and wait for the reply that bears the question's own nonce."""
        nonce = secrets.token_bytes(16)
        with contextlib.suppress(OSError):  # it has died already: the loop says so
            self._process.stdin.write(nonce + len(message).to_bytes(4, "big") + message)
            self._process.stdin.flush()
        began: tuple[float, float] | None = None
        pipe, reply = self._process.stdout.fileno(), bytearray()
        while True:
            if select.select([pipe], [], [], GLANCE_S)[0]:
                reply += (more := os.read(pipe, 1 << 20))
                if not more:
                    self._stop(_how_it_ended(self._process.wait()))
                while len(reply) >= HEADER and len(reply) >= (end := HEADER + int.from_bytes(reply[16:HEADER], "big")):
                    if reply[:16] == nonce:
                        return bytes(reply[HEADER:end])
                    del reply[:end]
                continue
            began = began or (self.cpu_seconds(), self.own_seconds())
            if self.cpu_seconds() - began[0] > limit_s:
                reason = f"stopped: not done after {self.limit_s:.3g} s{self.where()}"
                self._stop(f"{reason}. An endless loop, or far more work than needed?")
            if self.own_seconds() - began[1] > IDLE_FACTOR * limit_s + IDLE_S:
                self._stop(f"stopped: it waits for something that never comes{self.where()}. A sleep, or a lock?")

    def _stop(self, why: str) -> NoReturn:
        self.kill()
        raise AnswerEndedError(why)

    def cpu_seconds(self) -> float:
        """CPU time of all its threads: another program that is busy costs no answer anything."""
        with contextlib.suppress(psutil.Error):
            spent = psutil.Process(self._process.pid).cpu_times()
            return spent.user + spent.system
        return 0.0

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
        self.has_ended = True
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._folder.cleanup()


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


def _environment(hash_seed: str) -> dict[str, str]:
    """The child imports what the parent can, but for this project; one thread; the same order of sets every time."""
    folders = [os.path.abspath(entry) for entry in sys.path]
    path = os.pathsep.join(dict.fromkeys(each for each in folders if each != str(_root())))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": hash_seed,
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
    }

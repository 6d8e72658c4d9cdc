"""The process that an answer is graded in: reads tasks from standard input, writes what it finds to the parent.

Not for use by hand: runner.py starts it. Each line of standard input is one task, each line to the parent one
message, both JSON. What the answer prints never mixes with them: it goes to standard error.
"""

import base64
import builtins
import contextlib
import faulthandler
import importlib
import json
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from course.lab.grading.blame import explain
from course.lab.grading.exercise import Answer, Exercise
from course.lab.grading.exercises import find

Send = Callable[[dict[str, Any]], None]
MODULE = "answer"
"""The name an answer's file is imported under."""
PARENT_CHECK_S = 1.0
LARGEST_FILE = 64 * 2**20


def main() -> None:
    send = take_over_stdout()
    careful()
    for line in sys.stdin:
        task = json.loads(line)
        exercise = find(task["exercise"])
        prepare(exercise)
        limit_memory(exercise.memory_mb)
        send({"ready": True})
        grade(exercise, task, send)
        send({"done": True})
    sys.stderr.flush()
    os._exit(0)  # whatever threads the answer has left running


def prepare(exercise: Exercise) -> None:
    """Import the exercise's judges, and what it needs, as far as it is there."""
    os.environ.update(exercise.environment)
    if exercise.missing is None:
        for name in exercise.needs:
            importlib.import_module(name)
        _ = exercise.module  # its judges


def grade(exercise: Exercise, task: dict[str, Any], send: Send) -> None:
    if exercise.missing is not None:
        send({"failed": exercise.missing})
        return
    files = frozenset(task["lines"])
    for name, text in task["lines"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        names = load(task)
    except BaseException as error:
        send({"failed": explain(error, files)})
        return
    criteria = exercise.grade(Answer(names, files), task["seed"], begin=lambda part: send({"begin": part}))
    for part, criterion in enumerate(criteria):
        send({"part": part, "earned": criterion.earned, "feedback": criterion.feedback})


def load(task: dict[str, Any]) -> dict[str, Any]:
    """The names that the answer defines: run its file, or unpack what a notebook sent."""
    if "pickle" in task:
        return pickle.loads(base64.b64decode(task["pickle"]))
    ((path, text),) = task["lines"].items()
    module = types.ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module  # dataclasses and pickle look there
    exec(compile(text, path, "exec"), module.__dict__)
    return vars(module)


def take_over_stdout() -> Send:
    """Standard output is the way to the parent; for everything else it becomes standard error."""
    sys.stdout.flush()
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        sys.stdout.flush()
        results.write(json.dumps(message) + "\n")
        results.flush()

    return send


def careful() -> None:
    """Limits that need no knowledge of the exercise. An operating system that lacks one goes without."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    if hasattr(signal, "SIGUSR1"):  # the parent asks: where are you?
        faulthandler.register(signal.SIGUSR1, file=open("where.txt", "w"), all_threads=False)  # noqa: SIM115
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    builtins.input = no_input
    for name in ("fork", "forkpty"):
        if hasattr(os, name):
            setattr(os, name, no_fork)
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")  # not on Windows
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def end_with_parent(parent: int) -> NoReturn:
    """A notebook's kernel may be killed while an endless loop is checked: nothing else would end that."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def no_fork() -> NoReturn:
    raise OSError("an exercise needs one process: os.fork is switched off here")


def no_input(prompt: object = "") -> NoReturn:
    raise EOFError("there is no one to answer input() while an exercise is checked")


def limit_memory(megabytes: int) -> None:
    """At most so much more address space than now, where the operating system can say how much that is (Linux)."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20, hard))


if __name__ == "__main__":
    main()

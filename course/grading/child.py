"""The process that an answer runs in: it calls what it is told to, and sends back what that gave.

Not for use by hand: runner.py starts it as a script. It knows no exercise: questions come one by one, and neither the
judges, nor `solutions/`, nor this project can be imported or read here. A message is a length, a nonce and a pickle of
plain data (wire.py); an answer to a message repeats its nonce. What the learner's code prints goes to standard error.
"""

import base64
import builtins
import contextlib
import faulthandler
import gc
import importlib
import io
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Mapping
from typing import Any, NoReturn

MODULE = "answer"
"""The name an answer's file is imported under."""
PARENT_CHECK_S = 1.0
FAST_CORE_S = 0.005
"""What `slowness` measures on a fast core of 2024."""
LARGEST_FILE = 64 * 2**20
LARGEST_REPLY = 32 * 2**20
OURS = ("course", "minillm", "solutions", "exercises", "tests")
"""Packages and folders of this project that an answer does without."""
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")

blame: Any = importlib.import_module("blame")  # neighbours of this script: they need the standard library only
wire: Any = importlib.import_module("wire")
props: Any = importlib.import_module("props")


class Desk:
    """The answer, and what of it was sent by number."""

    def __init__(self) -> None:
        self.names: Mapping[str, Any] = {}
        self.files: frozenset[str] = frozenset()
        self.things: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.task: dict[str, Any] = {}
        self.now: list[Any] = []
        """The arguments of `play` as each act left them."""
        self.spoils = False

    def number_of(self, thing: Any) -> Any:
        if id(thing) not in self.numbers:
            self.numbers[id(thing)] = len(self.things)
            self.things.append(thing)
        return self.numbers[id(thing)], type(thing).__name__, blame.shown(thing), callable(thing)

    def prepare(self, environment: dict[str, str], needs: list[str], memory_mb: int) -> float:
        """All that is not the answer's own affair. Gives back by how much this machine is slow."""
        os.environ.update(environment)
        for name in ("numpy", *needs):
            importlib.import_module(name)
        limit_memory(memory_mb)
        return slowness()

    def load(self, task: dict[str, Any]) -> dict[str, tuple[bool, str]]:
        """Run the answer's file, or unpack what a notebook sent. Gives back its names: callable, and of which type."""
        self.task, self.files = task, frozenset(task["lines"])
        for name, text in task["lines"].items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return self.again()

    def again(self) -> dict[str, tuple[bool, str]]:
        """Load it afresh: nothing that it kept is left."""
        self.names, self.things, self.numbers = {}, [], {}
        gc.collect()  # by hand, between two answers: see `careful`
        if "pickle" in self.task:
            self.names = pickle.loads(base64.b64decode(self.task["pickle"]))
        else:
            ((path, text),) = self.task["lines"].items()
            module = types.ModuleType(MODULE)
            module.__file__ = path
            sys.modules[MODULE] = module  # dataclasses and pickle look there
            exec(compile(text, path, "exec"), module.__dict__)
            self.names = vars(module)
        return {name: (callable(value), type(value).__name__) for name, value in self.names.items()}

    def target(self, kind: str, which: Any) -> Any:
        if kind == "thing":
            return self.things[which]
        return getattr(props, which) if kind == "prop" else self.names[which]

    def get(self, number: int, name: str) -> Any:
        return getattr(self.things[number], name)

    def read(self, number: int, how: str) -> Any:
        """A thing as a list, a length or a float."""
        return {"list": wire.itertools.islice, "len": len, "float": float}[how](
            self.things[number], *([wire.LONGEST + 1] if how == "list" else [])
        )

    def many(self, kind: str, which: Any, lists: list[list[Any]]) -> list[Any]:
        target = self.target(kind, which)
        return [target(*arguments) for arguments in lists]

    def play(self, number: int, acts: list[tuple[str, list[Any] | None]]) -> list[Any]:
        """Methods of one object, one after the other; an attribute where there are no arguments."""
        results: list[Any] = []
        self.now = []
        for name, arguments in acts:
            found = getattr(self.things[number], name)
            result = listed(found if arguments is None else found(*arguments))
            results.append(result)  # as the caller holds them: one that is changed later is seen changed
            self.now.append((name, self.copy_of(arguments)))
            if self.spoils:
                spoil(arguments)
        return results

    def copy_of(self, value: Any) -> Any:
        return wire.unpacked(wire.packed(value, self.number_of), lambda about: self.things[about[0]])

    def named(self, name: str) -> Any:
        return self.names[name]

    def call(self, kind: str, which: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        target = self.target(kind, which)
        result = target(*arguments, **keywords)
        if (kind == "held" or isinstance(target, type)) and not wire.travels(type(result)):
            self.number_of(result)  # an object that has methods, even if it is a kind of list
        return result


def slowness() -> float:
    """How many times as long as on a fast core a piece of Python takes here, in CPU time; at least 1."""
    seconds = []
    for _ in range(3):
        began, total = time.process_time(), 0
        for i in range(100_000):
            total += i * i & 7
        seconds.append(time.process_time() - began)
    return max(min(seconds) / FAST_CORE_S, 1.0)


class Printed(io.TextIOBase):
    """Standard output: on to standard error, and the end of it kept."""

    end = ""

    def write(self, text: str) -> int:
        self.end = (self.end + text)[-200:]
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def spoil(value: Any) -> None:
    """A caller may do as it likes with its own lists and arrays afterwards."""
    if type(value) in (list, tuple):
        for each in value:
            spoil(each)
    if type(value) in (list, dict, set, bytearray):
        value.clear()
    elif type(value).__module__ == "numpy" and hasattr(value, "fill") and value.ndim and value.flags.writeable:
        value.fill(-1)


def main() -> None:
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    printed = Printed()
    careful(printed)
    desk = Desk()
    while header := source.read(20):
        nonce, size = header[:16], int.from_bytes(header[16:], "big")
        work, *content, desk.spoils = wire.unpacked(source.read(size), lambda number: desk.things[number])
        if work == "load":
            on_its_own()
        reply = answered(desk, printed, work, content)
        sink.write(nonce + len(reply).to_bytes(4, "big") + reply)
        sink.flush()
        if desk.spoils and work == "call" and not isinstance(desk.target(*content[:2]), type):
            spoil(content[2])
            if content[0] == "thing":
                spoil(getattr(desk, "result", None))
        content = desk.result = None
    os._exit(0)  # whatever threads the answer has left running


def answered(desk: Any, printed: Printed, work: str, content: list[Any]) -> bytes:
    """One reply: (True, result, arguments as they are now, what it printed, seconds), or False and what was raised."""
    printed.end = ""
    now = content[2] if work in ("call", "many") else None
    began = time.process_time()
    try:
        desk.result = result = getattr(desk, work)(*content)
        if hasattr(type(result), "__next__"):
            desk.result = result = [listed(each) for each in wire.itertools.islice(result, wire.LONGEST + 1)]
        now = desk.now if work == "play" else now
        took = time.process_time() - began
        reply = wire.packed((True, result, now, printed.end, took), desk.number_of, desk.numbers)
        if len(reply) > LARGEST_REPLY:
            raise MemoryError(f"{len(reply) // 2**20} MB were given back")
        return reply
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        told = blame.explain(error, desk.files)
        took = time.process_time() - began
        return wire.packed((False, (kinds, blame.message_of(error), told), now, printed.end, took), desk.number_of)


def listed(value: Any) -> Any:
    """An iterator inside an iterator is read before the next one comes."""
    return list(wire.itertools.islice(value, wire.LONGEST + 1)) if hasattr(type(value), "__next__") else value


class NoImports:
    """An import hook that refuses this project's own packages."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in OURS:
            raise ImportError(f"an answer stands on its own: `{name}` cannot be imported while it is checked")


def on_its_own() -> None:
    """From now on: no modules or files of this project, no other processes. Cannot be taken back."""
    if any(isinstance(finder, NoImports) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, NoImports())  # type: ignore[arg-type]
    root = os.path.dirname(os.path.abspath(__file__)).removesuffix(os.path.join("course", "grading"))
    folders = tuple(os.path.realpath(os.path.join(root, name)) + os.sep for name in OURS)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            raise OSError(f"an exercise needs one process: {event} is switched off here")
        is_path = event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes))
        if is_path and os.path.realpath(os.fsdecode(arguments[0])).startswith(folders):
            raise PermissionError("an answer stands on its own: this project's files are closed while it is checked")

    sys.addaudithook(refuse)


def careful(printed: Printed) -> None:
    """Limits that need no knowledge of the exercise. An operating system that lacks one goes without."""
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.stdout = printed
    if hasattr(signal, "SIGUSR1"):  # the parent asks: where are you?
        faulthandler.register(signal.SIGUSR1, file=open("where.txt", "w"), all_threads=False)  # noqa: SIM115
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    builtins.input = no_input
    gc.disable()  # it would charge an answer for all objects there are, and so look like work that grows
    with contextlib.suppress(ImportError, OSError, ValueError):
        resource = importlib.import_module("resource")  # not on Windows
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def end_with_parent(parent: int) -> NoReturn:
    """A notebook's kernel may be killed while an endless loop is checked: nothing else would end that."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


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

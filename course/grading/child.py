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
import itertools
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from functools import partial
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
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
"""The folder that `course` lies in."""
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")

blame: Any = importlib.import_module("blame")  # neighbours of this script: they need the standard library only
wire: Any = importlib.import_module("wire")
props: Any = importlib.import_module("props")
confine: Any = importlib.import_module("confine")


READERS: dict[str | None, Callable[[Any], Any]] = {"__iter__": wire.first_items, "__len__": len, "__float__": float}
"""What Python asks of a class, not of the object."""


class AnswerDesk:
    """The answer, and what of it was sent by number."""

    def __init__(self) -> None:
        self.names: Mapping[str, Any] = {}
        self.files: frozenset[str] = frozenset()
        self.things: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.task: dict[str, Any] = {}
        self.closed_builtins: dict[str, Any] | None = None
        """All that an answer's file may use, where the task says that it is closed in."""
        self.took = 0.0
        """CPU seconds of what was asked in this message."""
        self.slowness: float | None = None
        """Measured once: a child that grades many answers would spend more on this than on most of them."""

    def number_of(self, thing: Any) -> tuple[int, str, bool]:
        if id(thing) not in self.numbers:
            self.numbers[id(thing)] = len(self.things)
            self.things.append(thing)
        return self.numbers[id(thing)], blame.shown(thing), callable(thing)

    def prepare(self, environment: dict[str, str], needs: list[str], memory_mb: int) -> float:
        """All that is not the answer's own affair. Gives back by how much this machine is slow."""
        os.environ.update(environment)
        for name in ("numpy", *needs):
            importlib.import_module(name)
        gc.freeze()  # what is there now is nobody's garbage: `again` need not look through it
        limit_memory(memory_mb)
        if self.slowness is None:
            self.slowness = slowness()
        return self.slowness

    def load(self, task: dict[str, Any]) -> dict[str, tuple[bool, str]]:
        """Run the answer's file, or unpack what a notebook sent. Gives back its names: callable, and of which type."""
        self.task, self.files = task, frozenset(task["lines"])
        for name, text in task["lines"].items():
            remember(name, text)
        on_its_own()
        if task.get("closed_in") and self.closed_builtins is None:
            self.closed_builtins = confine.builtins_of_a_closed_room()
            confine.close()
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
            if self.closed_builtins is not None:
                vars(module)["__builtins__"] = dict(self.closed_builtins)
            exec(compile(text, path, "exec"), module.__dict__)
            self.names = vars(module)
        return {name: (callable(value), type(value).__name__) for name, value in self.names.items()}

    def many(self, number: int, name: str, lists: list[list[Any]]) -> list[Any]:
        """One method for many arguments, as quickly as it can be asked: for judges that measure."""
        method = getattr(self.things[number], name)
        return [method(*arguments) for arguments in lists]

    def replies(self, work: str, *content: Any) -> list[bytes]:
        """What a message asks for: to `do` acts one after the other, or one of the methods above."""
        if work == "do":
            return self.do(*content)
        return [self.reply(partial(getattr(self, work), *content), content[-1] if work == "many" else None)[2]]

    def do(self, kind: str, which: Any, acts: list[bytes], spoils: bool, goes_on: bool) -> list[bytes]:
        """Acts (remote.py) on a thing (by number), a prop or a function (by name; "held": what it gives stays here).

        Args:
            spoils: overwrite lists and arrays after each call, as their owner may.
            goes_on: also after an act that failed.
        """
        target: Any = {"thing": self.things, "prop": vars(props)}.get(kind, self.names)[which]
        replies = []
        for data in acts:
            name, arguments, keywords = self.unpacked(data)
            act = partial(self.act, target, name, arguments, keywords, kind == "held")
            is_right, result, reply = self.reply(act, arguments)
            replies.append(reply)
            if spoils and arguments is not None and not isinstance(target, type):
                spoil(arguments)
                spoil(result if kind == "thing" else None)
            if not (is_right or goes_on):
                break
        return replies

    def act(self, target: Any, name: str | None, arguments: Any, keywords: dict[str, Any], stays: bool) -> Any:
        if name in READERS:
            return READERS[name](target)
        found = target if name is None else getattr(target, name)
        if arguments is None:
            return found
        result = found(*arguments, **keywords)
        if (stays or isinstance(found, type)) and not wire.travels(type(result)):
            self.number_of(result)  # an object that has methods, even if it is a kind of list
        return result

    def reply(self, work: Callable[[], Any], arguments: Any = None) -> tuple[bool, Any, bytes]:
        """Whether it went well, what it gave, and both packed, with the arguments as they are now."""
        began = time.process_time()
        try:
            try:
                result = read(work())
            finally:
                self.took += time.process_time() - began
            reply = wire.packed((True, result, arguments), self.number_of, self.numbers)
            if len(reply) > LARGEST_REPLY:
                raise MemoryError(f"{len(reply) // 2**20} MB were given back")
            return True, result, reply
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            raised = kinds, blame.message_of(error), blame.explain(error, self.files)
            return False, None, wire.packed((False, raised, arguments), self.number_of)

    def unpacked(self, data: bytes) -> Any:
        return wire.unpacked(data, self.things.__getitem__)


def remember(name: str, text: str) -> None:
    """So that explanations of errors show the answer's own lines."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def read(result: Any) -> Any:
    """An iterator's items; one inside it is read before the next one comes."""
    if not hasattr(type(result), "__next__"):
        return result
    items = itertools.islice(result, wire.LONGEST + 1)
    return [wire.first_items(each) if hasattr(type(each), "__next__") else each for each in items]


def slowness() -> float:
    """How many times as long as on a fast core a piece of Python takes here, in CPU time; at least 1."""
    began, total = time.process_time(), 0
    for i in range(100_000):
        total += i * i & 7
    return max((time.process_time() - began) / FAST_CORE_S, 1.0)


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
    desk = AnswerDesk()
    while header := source.read(20):
        nonce, size = header[:16], int.from_bytes(header[16:], "big")
        printed.end, desk.took = "", 0.0
        replies = desk.replies(*desk.unpacked(source.read(size)))
        message = wire.packed((replies, printed.end, desk.took), desk.number_of)
        sink.write(nonce + len(message).to_bytes(4, "big") + message)
        sink.flush()
    os._exit(0)  # whatever threads the answer has left running


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
    folders = tuple(os.path.realpath(os.path.join(ROOT, name)) + os.sep for name in OURS)

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

"""One line among a cell's results: what it is waiting for, every second; and when it is over, how long it took."""

import ast
import contextvars
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol, TypeVar

from IPython import get_ipython
from IPython.core.error import InputRejected
from IPython.display import display

from course.lab.display import bundle_of
from course.lab.marks import EXAMPLE, TRANSIENT
from course.lab.plain_text import show_beginnings
from course.lab.style import ALARM, seconds

REFRESH_S = 0.9
"""Until a cell says that it is at work, and between two looks at a run: rare, to take nothing from the engine."""
RUNNING = "running"
SCORED = re.compile(r"\b(\w+)\.score\(")
Item = TypeVar("Item")
Write = Callable[[str, str], None]
Put = Callable[[Any], None]
"""Shows a widget or a picture beside the line, in place of what it showed there before; None = nothing."""
UNLOCKED = "Your prediction above isn't locked. Lock it before you look."


class Stopped(KeyboardInterrupt):
    """By the square button above the notebook: a cell ends with a sentence, in place of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Growing(Protocol):
    """Runs in progress, as a picture (growing.py)."""

    def end(self, shows_nothing: bool) -> None: ...


class WaitingLine:
    """The line under a cell that runs, or what a button does; there is none if that takes less than REFRESH_S.

    Args:
        write: shows HTML, and the same as words, in place of what it showed before.
        warning: what the reader should know before it has ended; shown immediately.
        put: shows runs while they go on; None = there is no place for them.
    """

    def __init__(
        self,
        write: Write,
        clock: Callable[[], float] = time.monotonic,
        warning: str = "",
        put: Put | None = None,
    ) -> None:
        self.put = put
        self.picture: Growing | None = None
        self.num_runs = 0
        self.words, self.task = RUNNING, ""
        """What it's busy with, and what that is a part of."""
        self.share: float | None = None
        """The share of the task that is done."""
        self._write, self._warning, self._clock, self._began = write, warning, clock, clock()
        self._is_shown = False
        self._lock, self._over = threading.Lock(), threading.Event()
        if warning:
            self.tell()

    def watch(self) -> None:
        """Tell until it is over; in a thread that writes where this one does."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._keep_telling,), name="waiting", daemon=True).start()

    def _keep_telling(self) -> None:
        while not self._over.wait(REFRESH_S):
            self.tell()

    def tell(self) -> None:
        with self._lock:
            if not self._over.is_set():
                words = self.words if self.words != RUNNING or not self.task else ""
                told = " · ".join(filter(None, (self.task, words)))
                self._show(f"{told}, {self._clock() - self._began:.0f} s")

    def end(self, shows_nothing: bool = False) -> None:
        """It is over, or failed.

        Args:
            shows_nothing: the cell has no result of its own.
        """
        with self._lock:
            self._over.set()
            if self.picture is not None:
                self.picture.end(shows_nothing)
            if self._is_shown:
                runs = f", {self.num_runs} run{'s' * (self.num_runs > 1)} on the engine" if self.num_runs else ""
                self._show(f"took {seconds(self._clock() - self._began)}{runs}")

    def _show(self, words: str) -> None:
        self._is_shown = True
        warning = f'<b style="color:{ALARM}">{escape(self._warning)}</b> ' if self._warning else ""
        is_known = self.share is not None and not self._over.is_set()
        bar = f'<progress value="{self.share:.2f}"></progress> ' if is_known else ""
        html = f'<div style="font-size:12px">{warning}{bar}<span style="opacity:.75">{escape(words)}</span></div>'
        self._write(html, f"{self._warning} {words}".strip())


def cell_output() -> Callable[[Mapping[str, Any]], None]:
    """Shows bundles among the results of the cell that runs, each in place of the one before."""
    handle = None

    def show(bundle: Mapping[str, Any]) -> None:
        nonlocal handle
        look = {"raw": True, "metadata": {TRANSIENT: True}}
        if handle is None:
            handle = display(bundle, display_id=True, **look)
        else:
            handle.update(bundle, **look)

    return show


def line_of_cell(warning: str) -> WaitingLine:
    """A line for the cell that runs, and above it a place for its runs."""
    show_line, show_run = cell_output(), cell_output()

    def write(html: str, words: str) -> None:
        show_line({"text/html": html, "text/plain": words})

    def put(shown: Any) -> None:
        nothing = {"text/html": "", "text/plain": ""}  # also where no kernel can draw a widget
        show_run(nothing if shown is None else {**nothing, **bundle_of(shown)[0]})

    return WaitingLine(write, warning=warning, put=put)


_now: WaitingLine | None = None
"""The line of the cell that runs; None between cells, in scripts and tests."""
_of_thread = threading.local()


def line_here() -> WaitingLine | None:
    """The line of the cell, or of the button's thread, that this is called from."""
    of_cell = _now if threading.current_thread() is threading.main_thread() else None
    return getattr(_of_thread, "line", of_cell)


@contextmanager
def telling(write: Write, put: Put | None = None) -> Iterator[None]:
    """What this thread does meanwhile, `write` is told of, and `put` shows its runs."""
    _of_thread.line = line = WaitingLine(write, put=put)
    line.watch()
    try:
        yield
    finally:
        del _of_thread.line
        line.end()


def say(words: str) -> None:
    """What the cell, or the button, is busy with from now on."""
    if (line := line_here()) is not None:
        line.words = words


def with_progress(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, one after the other, while the line says how far it is.

    Args:
        what: is being done, in a few words; the line adds the item's own.
    """
    items, line = list(items), line_here()
    for i, item in enumerate(items):
        if line is not None:
            line.task, line.share = f"{what}: {item}, {i} of {len(items)} done", i / len(items)
        yield item
    if line is not None:
        line.task, line.share = "", None


def say_run(name: str, is_loading: bool) -> str:
    """Another run is about to be played; `is_loading`: the model has to be read first. Returns what it's called."""
    if (line := line_here()) is not None:
        line.num_runs += 1
        name = f"run {line.num_runs}, {name}"
        line.words = "loading the model, once" if is_loading else f"{name}: preparing the engine"
    return name


def watch_cells() -> None:
    """From now on every cell of this notebook has a line, the one that runs now included, and a brief last one."""
    shell = get_ipython()
    if _now is None and getattr(shell, "kernel", None) is not None:
        shell.events.register("pre_run_cell", lambda info: _begin(_unlocked(info.raw_cell, shell.user_ns)))
        shell.events.register("post_run_cell", lambda done: _end(shows_nothing=done.success and done.result is None))
        shell.ast_transformers.append(BetFirst(shell.user_ns))
        show_beginnings(shell)
        _begin()


class NoBetError(InputRejected):
    """A cell is refused with a sentence, in place of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class BetFirst(ast.NodeTransformer):
    """Stops a cell that scores a bet which isn't there, before it spends seconds on the engine.

    Args:
        names: what the notebook has.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def visit_Module(self, tree: ast.Module) -> ast.Module:
        made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for statement in tree.body:
            match statement:
                case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="score"))):
                    if name not in self._names and name not in made:
                        told = f"This cell's bet, {name}, isn't there yet: run the cells above, then this one."
                        raise NoBetError(told)
        return tree


def _unlocked(code: str, names: dict[str, Any]) -> str:
    """A warning, if a cell scores a prediction that is still open."""
    is_open = any(getattr(names.get(name), "locked", True) is False for name in SCORED.findall(code))
    return UNLOCKED if is_open and EXAMPLE not in os.environ else ""


def _begin(warning: str = "") -> None:
    global _now
    _now = line_of_cell(warning)
    _now.watch()


def _end(shows_nothing: bool) -> None:
    global _now
    if _now is not None:
        _now.end(shows_nothing)
        _now = None

"""One line above a cell's results that says what the cell is waiting for. It is replaced as the runs go on."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from IPython import get_ipython
from IPython.display import display

from course.lab.marks import TRANSIENT
from course.lab.style import seconds
from course.lab.workloads import Workload

REFRESH_S = 1.0
"""Seconds between two looks at a run: rare enough to take nothing from the engine."""


def running_cell() -> str | None:
    """Which execution of a cell this is; None in scripts and tests, in other threads, and in what a widget calls."""
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None or threading.current_thread() is not threading.main_thread():
        return None
    header = kernel.get_parent("shell").get("header", {})
    return header["msg_id"] if header.get("msg_type") == "execute_request" else None


class WaitingLine:
    """What `Lab.run` is busy with. A cell has one line, however many runs it plays; other runs have none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cell: Cell | None = None

    def begin(self, traffic: Workload, is_loading: bool) -> "RunLine":
        """Another run is about to be played; `is_loading`: the model has to be read first."""
        name, now = running_cell(), self._clock()
        if name is None:  # the cell that runs meanwhile keeps its line
            return RunLine(None, 0, traffic, self._clock, now)
        if self._cell is None or name != self._cell.name:
            self._cell = Cell(name, now)
        self._cell.num_runs += 1
        run = RunLine(self._cell, self._cell.num_runs, traffic, self._clock, now)
        run.show("loading the model, once: some seconds" if is_loading else f"{run.name}: preparing the engine")
        return run


@dataclass
class Cell:
    """One execution of a cell, and what it shows."""

    name: str
    began: float
    """Clock seconds."""
    num_runs: int = 0
    handle: Any = None
    """Of the display; None before anything is shown."""


class RunLine:
    """What one run writes on its cell's line; nothing, if no cell plays it.

    Args:
        cell: None = no cell plays it.
        number: of the run in its cell, from 1.
        began: clock seconds.
    """

    def __init__(
        self, cell: Cell | None, number: int, traffic: Workload, clock: Callable[[], float], began: float
    ) -> None:
        self.name = f"run {number}, {traffic.name}"
        self._cell, self._clock, self._began = cell, clock, began
        self._num_requests = len(traffic.arrivals)

    def go_on(self, num_ended: int) -> None:
        """So many of the run's requests have ended by now."""
        taken = f"{self._clock() - self._began:.0f} s"
        self.show(f"{self.name}: {taken}, {num_ended} of {self._num_requests} requests done")

    def end(self) -> None:
        """The run is over, or failed."""
        if self._cell is not None:
            runs = "1 run" if self._cell.num_runs == 1 else f"{self._cell.num_runs} runs"
            self.show(f"{runs} on the engine, {seconds(self._clock() - self._cell.began)}")

    def show(self, words: str) -> None:
        """In place of what the line says."""
        if self._cell is None:
            return
        look = "font-size:12px;opacity:.75"
        bundle = {"text/html": f'<div style="{look}">{escape(words)}</div>', "text/plain": words}
        if self._cell.handle is None:
            self._cell.handle = display(bundle, raw=True, metadata={TRANSIENT: True}, display_id=True)
        else:
            self._cell.handle.update(bundle, raw=True, metadata={TRANSIENT: True})

"""One line above a cell's results that says what the cell is waiting for. It is replaced as the runs go on."""

import threading
import time
from collections.abc import Callable
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
    """What `Lab.run` is busy with. A cell has one line, however many runs it plays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cell: str | None = None
        self._handle: Any = None
        self._num_runs = 0
        self._cell_began = self._run_began = 0.0
        self._traffic: Workload | None = None

    def begin(self, traffic: Workload, is_loading: bool) -> None:
        """Another run is about to be played; `is_loading`: the model has to be read first."""
        cell = running_cell()
        if cell != self._cell:
            self._cell, self._handle, self._num_runs, self._cell_began = cell, None, 0, self._clock()
        self._num_runs += 1
        self._traffic, self._run_began = traffic, self._clock()
        self._show("loading the model, once: some seconds" if is_loading else f"{self._run}: preparing the engine")

    def go_on(self, num_ended: int) -> None:
        """So many of the run's requests have ended by now."""
        taken = f"{self._clock() - self._run_began:.0f} s"
        self._show(f"{self._run}: {taken}, {num_ended} of {len(self._traffic.arrivals)} requests done")

    def end(self) -> None:
        runs = "1 run" if self._num_runs == 1 else f"{self._num_runs} runs"
        self._show(f"{runs}, {seconds(self._clock() - self._cell_began)}")

    @property
    def _run(self) -> str:
        return f"run {self._num_runs}, {self._traffic.name}"

    def _show(self, words: str) -> None:
        if self._cell is None:
            return
        look = "font-size:12px;opacity:.75"
        bundle = {"text/html": f'<div style="{look}">{escape(words)}</div>', "text/plain": words}
        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata={TRANSIENT: True}, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata={TRANSIENT: True})

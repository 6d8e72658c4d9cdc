"""One line on standard error that says how far a simulation is, for whoever is sitting there."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from minillm.core.batch import ScheduledBatch
from minillm.runner.simulated import StepPrice, StepWatch

PATIENCE_S = 2.0
"""Nothing is shown of what takes less time."""
BETWEEN_S = 0.2
"""Between two updates."""
WIDTH = 100


class Progress:
    """Shows simulated seconds, from the steps it sees. Use it as a context manager: the line is wiped in the end.

    Args:
        stream: shows nothing unless it is a terminal; None = standard error.
        now: a clock that ticks in real seconds.
    """

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._now = now
        self._next = now() + PATIENCE_S
        self._what, self._until, self._reached = "", 0.0, 0.0
        self._number = 0
        self._shown = False

    @property
    def watch(self) -> StepWatch | None:
        """For the engines; None when there is nobody to show anything to."""
        return self._see if self._stream.isatty() else None

    def begin(self, what: str, until: float) -> StepWatch | None:
        """Say what is simulated from here on. Returns `watch`.

        Args:
            until: simulated seconds to go, about.
        """
        self._number += 1
        self._what, self._until, self._reached = what, until, 0.0
        return self.watch

    def _see(self, batch: ScheduledBatch, price: StepPrice, end: float) -> None:
        self._reached = max(self._reached, end)
        now = self._now()
        if now < self._next:
            return
        self._next, self._shown = now + BETWEEN_S, True
        run = f"run {self._number}: " if self._number > 1 else ""
        share = min(self._reached / self._until, 1.0) if self._until > 0 else 1.0
        line = f"{run}{self._what}: {self._reached:.0f} of {self._until:.0f} s simulated ({share:.0%})"
        self._stream.write(f"\r{line:<{WIDTH}.{WIDTH}}")
        self._stream.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write(f"\r{'':<{WIDTH}}\r")
            self._stream.flush()

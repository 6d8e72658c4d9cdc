"""How far a simulation is: a bar on standard error, only on a terminal, and only if it takes a while."""

import sys

from tqdm import tqdm

from minillm.core.batch import ScheduledBatch
from minillm.runner.simulated import StepPrice, StepWatch


class Progress:
    """Shows simulated seconds, from the steps it sees. Use it as a context manager: the bar is wiped in the end."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    @property
    def watch(self) -> StepWatch | None:
        """For the engines; None without a terminal."""
        return self._see if sys.stderr.isatty() else None

    def begin(self, what: str, until: float) -> StepWatch | None:
        """Say what is simulated from here on, for about `until` simulated seconds. Returns `watch`."""
        self.__exit__()
        self._bar = tqdm(total=round(until), desc=what, unit="s", delay=2, disable=None, leave=False, file=sys.stderr)
        return self.watch

    def _see(self, batch: ScheduledBatch, price: StepPrice, end: float) -> None:
        if self._bar is not None:
            self._bar.update(max(int(end) - self._bar.n, 0))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

"""The event queue: everything that will happen, in order of time. Time jumps from one event to the next."""

import contextlib
import gc
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class EventQueue:
    """A discrete-event simulation's heart. Events of the same moment happen in the order they were entered."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds after the start."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entered = 0
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """What was entered in this moment for this moment: most of all events."""

    def at(self, moment: float, action: Callable[..., None], *args: Any) -> None:
        """Enter something that happens at `moment`.

        Raises:
            ValueError: that was in the past.
        """
        if moment > self.now:
            heapq.heappush(self._heap, (moment, self._entered, action, args))
            self._entered += 1
        elif moment == self.now:
            self._soon.append((action, args))
        else:
            raise ValueError(f"an event at {moment} is entered at {self.now}")

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + seconds, action, *args)

    def run(self) -> None:
        """Let everything happen, until nothing is left."""
        heap, soon = self._heap, self._soon
        while heap or soon:
            if soon and not (heap and heap[0][0] == self.now):
                action, args = soon.popleft()
            else:  # what was entered for this moment before it came is first
                self.now, _, action, args = heapq.heappop(heap)
            action(*args)


OBJECTS = 1_000_000
"""Python looks for garbage when so many more have been made than dropped; otherwise after every few hundred."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, Python looks for garbage rarely: a simulation or a load test keeps nearly all that it makes."""
    thresholds = gc.get_threshold()
    gc.set_threshold(OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)

"""The one source of time. Every stamp in a :class:`~minillm.timeline.Timeline` comes from one Clock.

Real runs use :class:`WallClock`. Simulated runs use :class:`VirtualClock`, which only moves when
somebody advances it, so that an hour of traffic takes a second and two runs are identical.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time: real (WallClock) or simulated (VirtualClock)."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes backwards."""
        ...


class WallClock:
    """Monotonic real time, in seconds."""

    def now(self) -> float:
        return time.perf_counter()


class VirtualClock:
    """Time that stands still until it is advanced, in seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time cannot go backwards: advance({seconds})")
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Set the clock to exactly `moment`. (`advance(moment - now)` may miss it by a rounding error.)"""
        if moment < self._now:
            raise ValueError(f"time cannot go backwards: advance_to({moment}) at {self._now}")
        self._now = moment

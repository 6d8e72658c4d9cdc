"""The five phases of one request, from arrival to the last byte.

The engine writes six stamps as things happen; the phases are the five gaps between them. Because
every phase starts where the one before it ended, they always sum to the end-to-end time: no
second can go missing, and none is counted twice.

    arrival     scheduled    prefill_end   first_token    last_token    finished
       |  queue     |   prefill   | first_token |   decode    |   stream    |
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minillm.core.brief import brief


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


PHASES = ("queue", "prefill", "first_token", "decode", "stream")
"""
queue: arrival at the server, to the first step that schedules it
prefill: that step's start, to the end of the pass that computes its last prompt token
first_token: end of that pass, to the first token handed over (sample, sync, detokenize)
decode: first token handed over, to the last token handed over
stream: last token handed over, to the last byte taken by the client
"""

STAMPS = ("arrival", "scheduled", "prefill_end", "first_token", "last_token", "finished")
"""A Timeline's, in the order in which they happen: the borders of the phases."""


class Verification(NamedTuple):
    """One step that checked a request's draft. The others in the step share its seconds."""

    num_drafts: int
    num_accepted: int
    """Draft tokens that were accepted: one token more was emitted."""
    draft_s: float
    verify_s: float
    """Seconds of the step without drafting."""


@dataclass(slots=True)
class Timeline:
    """Stamps of one request, in seconds of the engine's clock. None means "has not happened".

    A request that ends early (aborted, timed out) has fewer stamps; the phase it was in when it
    ended absorbs the rest, so the sum still holds.
    """

    arrival: float
    scheduled: float | None = None
    prefill_end: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    deliveries: list[float] = field(default_factory=list)
    """One stamp per delivery to the client. A delivery can carry several tokens."""
    num_tokens: int = 0
    """Output tokens delivered so far."""
    lost: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds lost inside phases, by cause. Causes may overlap, so they don't add up to a phase.

    preempted: from each preemption until it has caught up again
    stalled_by_prefill: what others' prompts added to the steps in which it decoded (estimated: observe/step_cost.py)
    rejected_drafts: what checking its rejected drafts added to its steps (estimated, too), and their share of the
        seconds in which the steps' drafts were made
    detokenize: turning its tokens into text
    """
    verifications: list[Verification] = field(default_factory=list)
    """Every step that checked a draft; see observe/speculation.py."""

    __repr__ = brief

    def deliver(self, now: float, num_tokens: int) -> None:
        """`num_tokens` were handed over at `now`; the first call also ends the first-token phase."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.deliveries.append(now)
        self.num_tokens += num_tokens

    def accept(self, now: float) -> None:
        """The client's transport took the last byte at `now`: the stream phase ends there."""
        self.finished = max(now, self.finished if self.finished is not None else now)

    def borders(self, now: float | None = None) -> list[float]:
        """The six borders of the five phases, in seconds; what has not happened yet is put at the end.

        Args:
            now: for a request that is still in flight, the moment to look at it.
        Raises:
            ValueError: the request is in flight and `now` was not given.
        """
        end = self.finished if self.finished is not None else now
        if end is None:
            raise ValueError("the request has not finished: pass now= to look at it in flight")
        # While tokens still come, the last hand-over is not known: decode runs to the end.
        last_token = self.last_token if self.finished is not None else None
        stamps = (self.scheduled, self.prefill_end, self.first_token, last_token)
        return [self.arrival, *(end if stamp is None else stamp for stamp in stamps), end]

    def phases(self, now: float | None = None) -> dict[str, float]:
        """Seconds spent in each phase; they sum to :attr:`e2e` (or to now - arrival in flight)."""
        borders = self.borders(now)
        return {phase: borders[i + 1] - borders[i] for i, phase in enumerate(PHASES)}

    @property
    def current_phase(self) -> str | None:
        """The phase a request in flight is in; None once it has finished."""
        if self.finished is not None:
            return None
        if self.scheduled is None:
            return "queue"
        if self.prefill_end is None:
            return "prefill"
        return "first_token" if self.first_token is None else "decode"

    @property
    def e2e(self) -> float | None:
        """Arrival to last byte, seconds; None while in flight."""
        return None if self.finished is None else self.finished - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, seconds: queue + prefill + first token. None if there was none."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies, seconds: the raw gaps between deliveries."""
        return [b - a for a, b in zip(self.deliveries, self.deliveries[1:])]

    @property
    def tpot(self) -> float | None:
        """Time per output token, seconds: (E2E - TTFT) / (n - 1). Undefined (None) for n < 2."""
        if self.num_tokens < 2 or self.e2e is None or self.ttft is None:
            return None
        return (self.e2e - self.ttft) / (self.num_tokens - 1)

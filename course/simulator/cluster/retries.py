"""Whether and when a client tries again: backoff with jitter, a retry budget, a circuit breaker.

Simulated clients and those over a real server keep the same `Retries`: it is told the time, and asks no clock.

    retries = Retries(RetryPolicy(max_attempts=4, backoff_s=1, jitter=1), random.random)
    ticket = retries.begin(now)                     # None = the breaker is open: do not send
    ...                                             # send
    retries.end(ticket, now, ok=False)
    pause = retries.pause(attempts=1)               # None = give up; else sleep, begin again
"""

import enum
from collections import deque
from collections.abc import Callable

from pydantic import Field

from course.simulator.workload.streams import WorkloadModel

MOST_SAVED = 10.0
"""Retries that a budget saves up: a quiet hour must not pay for a storm."""


class BreakerPolicy(WorkloadModel):
    """A circuit breaker stops sending where most attempts fail, and looks now and then whether that has passed
    (Nygard, "Release It!", 2007)."""

    failure_share: float = Field(0.5, gt=0, le=1, description="it opens when so many of the recent attempts failed")
    window_s: float = Field(10.0, gt=0, description="recent: ended within so many seconds")
    min_attempts: int = Field(20, ge=1, description="fewer recent attempts than this prove nothing")
    open_s: float = Field(5.0, gt=0, description="seconds of sending nothing before a trial")


class RetryPolicy(WorkloadModel):
    """What a client does about a failed attempt. The default is to leave it at that."""

    max_attempts: int = Field(1, ge=1, description="tries at one request; 1 = no retries")
    backoff_s: float = Field(0.0, ge=0, description="pause before the first retry, seconds; 0 = at once")
    backoff_factor: float = Field(2.0, ge=1, description="each further pause is so many times as long")
    backoff_cap_s: float | None = Field(None, gt=0, description="no pause is longer, seconds; None = no limit")
    jitter: float = Field(0.0, ge=0, le=1, description="up to this share of a pause is left out, at random; 1 = full")
    retry_budget: float | None = Field(
        None, ge=0, le=1, description="retries per request of all clients together, at most; None = no limit"
    )
    breaker: BreakerPolicy | None = Field(None, description="one for all clients, as in a gateway; None = never stops")

    def backoff(self, attempts: int, uniform: float) -> float:
        """Seconds to wait after so many attempts. With jitter 1 they are uniform in (0, the whole pause]: "full jitter"
        (Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015).

        Args:
            uniform: a random number in [0, 1).
        """
        pause = self.backoff_s * self.backoff_factor ** (attempts - 1)
        return min(pause, self.backoff_cap_s or pause) * (1 - self.jitter * uniform)


class BreakerState(enum.StrEnum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    """All attempts are sent."""
    OPEN = "open"
    """None is."""
    HALF_OPEN = "half-open"
    """A single one is out, and decides."""


class CircuitBreaker:
    """Moments are seconds on any clock that does not go back."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.state = BreakerState.CLOSED
        self._recent: deque[tuple[float, bool]] = deque()
        """Attempts that ended lately: when, and whether well."""
        self._opened = 0.0
        self._epoch = 0
        """Changes of state so far: an attempt from before the last one says nothing about now."""

    def begin(self, now: float) -> int | None:
        """A ticket for an attempt; None = it must not be sent."""
        if self.state is BreakerState.OPEN and now >= self._opened + self.policy.open_s:
            self._become(BreakerState.HALF_OPEN)
            return self._epoch
        return self._epoch if self.state is BreakerState.CLOSED else None

    def end(self, ticket: int, now: float, ok: bool) -> None:
        """The attempt with this ticket is over."""
        if ticket != self._epoch:
            return
        if self.state is BreakerState.HALF_OPEN:
            self._opened = now
            self._become(BreakerState.CLOSED if ok else BreakerState.OPEN)
            return
        recent, policy = self._recent, self.policy
        recent.append((now, ok))
        while recent[0][0] < now - policy.window_s:
            recent.popleft()
        failed = sum(not well for _, well in recent)
        if len(recent) >= policy.min_attempts and failed >= policy.failure_share * len(recent):
            self._opened = now
            self._become(BreakerState.OPEN)

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._epoch += 1
        self._recent.clear()


class Retries:
    """One policy's memory, for all requests of the clients that share it.

    Args:
        uniform: draws a random number in [0, 1).
    """

    def __init__(self, policy: RetryPolicy, uniform: Callable[[], float]) -> None:
        self.policy, self._uniform = policy, uniform
        self.breaker = CircuitBreaker(policy.breaker) if policy.breaker else None
        self._saved = 0.0
        """Retries that the budget allows now."""

    def begin(self, now: float, is_retry: bool = False) -> int | None:
        """A ticket for an attempt that is about to be sent; None = the breaker is open, and it must not be."""
        if not is_retry:  # each request pays for its share of a retry (Google's SRE book, chapter 21)
            self._saved = min(self._saved + (self.policy.retry_budget or 0.0), MOST_SAVED)
        return self.breaker.begin(now) if self.breaker else 0

    def end(self, ticket: int, now: float, ok: bool) -> None:
        """That attempt was answered, or failed in a way that speaks against the service."""
        if self.breaker:
            self.breaker.end(ticket, now, ok)

    def pause(self, attempts: int, retry_after_s: float = 0.0) -> float | None:
        """Seconds until the next attempt after so many failed ones; None = there will be none.

        Args:
            retry_after_s: what the server asked for. The backoff comes on top: all that were refused together were
                told the same. A client that does not back off does not read it either.
        """
        policy = self.policy
        if attempts >= policy.max_attempts:
            return None
        if policy.retry_budget is not None:
            if self._saved < 1:
                return None
            self._saved -= 1
        return policy.backoff(attempts, self._uniform()) + (retry_after_s if policy.backoff_s else 0.0)

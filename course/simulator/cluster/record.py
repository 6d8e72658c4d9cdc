"""What a client saw of each request, and how that becomes the rows that every table and summary is made of."""

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

from course.simulator.workload.requests import WorkloadRequest
from minillm.core.brief import brief
from minillm.core.request import FinishReason
from minillm.core.timeline import Timeline
from minillm.observe.records import RequestRecord


class Outcome(enum.StrEnum):
    """How a request ended for its client; exactly one each."""

    COMPLETED = "completed"
    SHED = "shed"
    """The service refused it, or dropped it unserved, and the client did not try again; or an open circuit breaker kept
    it from being sent."""
    TIMEOUT = "timeout"
    """The client gave up waiting."""
    ERROR = "error"
    """It can never be served (a prompt too long), or its step failed."""
    SKIPPED = "skipped"
    """A later turn of a conversation that ended early: it was never sent."""


FINISH_REASONS = {
    Outcome.COMPLETED: FinishReason.LENGTH,
    Outcome.SHED: FinishReason.ERROR,
    Outcome.TIMEOUT: FinishReason.TIMEOUT,
    Outcome.ERROR: FinishReason.ERROR,
    Outcome.SKIPPED: FinishReason.ABORT,
}

Since = Literal["intended", "sent"]
"""Where a client's latency begins: when the request really left, as load tests count, or when it was due. In an open
loop that is the same moment. A closed loop that counts from "sent" leaves out the waiting it did itself: coordinated
omission (Tene, "How not to measure latency"). So whatever prints a latency of a closed loop says which it is."""


@dataclass(slots=True, eq=False)
class ClientRecord:
    """One request, from its client's side. Moments in seconds after the start; None = it never happened."""

    request: WorkloadRequest
    intended: float | None = None
    """When its client wanted to send it."""
    sent: float | None = None
    """When the first attempt left; later than intended if the client holds requests back."""
    accepted: float | None = None
    """When the service took the last attempt."""
    first_byte: float | None = None
    last_byte: float | None = None
    ended: float | None = None
    """When the matter was closed, well or badly."""
    outcome: Outcome | None = None
    deliveries: list[float] = field(default_factory=list)
    """When each piece of the answer reached the client; of completed requests."""
    num_tokens: int = 0
    """Output tokens received."""
    tries: list[float] = field(default_factory=list)
    """When each attempt left."""
    replica: str | None = None
    """Who answered last, or was working on it when the client left."""
    num_cached_tokens: int = 0
    """Prompt tokens found in that replica's prefix cache."""
    timeline: Timeline | None = None
    """The engine's own stamps of the last attempt, if it got that far and was not refused. Of a client who gave up:
    as far as they had come, in the last pool that worked for it."""
    is_far: bool = False
    """The client is one of the far ones; see Network."""
    misrouted: bool = False
    """Model routing chose the wrong model for it."""
    error: str | None = None

    __repr__ = brief

    @property
    def attempts(self) -> int:
        return len(self.tries)

    @property
    def completed(self) -> bool:
        return self.outcome is Outcome.COMPLETED

    def start(self, since: Since) -> float | None:
        return self.intended if since == "intended" else self.sent

    def _since_start(self, moment: float | None, since: Since) -> float | None:
        start = self.start(since)
        return None if moment is None or start is None else moment - start

    def ttft(self, since: Since = "sent") -> float | None:
        """Seconds to the first byte."""
        return self._since_start(self.first_byte, since)

    def e2e(self, since: Since = "sent") -> float | None:
        """Seconds to the last byte."""
        return self._since_start(self.last_byte, since)

    def as_request_record(self, since: Since = "sent") -> RequestRecord | None:
        """The row that `minillm.observe` works with, with the client's stamps; None if it was never sent.

        The queue phase begins at the client, so it holds everything before the first step that served the
        request: the client's own backlog, the network, earlier attempts.
        """
        start, server = self.start(since), self.timeline
        if self.sent is None or start is None or self.outcome is None:
            return None
        timeline = Timeline(start, finished=self.ended)
        if self.completed and server is not None and server.last_token is not None and self.first_byte is not None:
            timeline.scheduled, timeline.prefill_end = server.scheduled, server.prefill_end
            timeline.first_token = self.first_byte
            timeline.last_token = max(server.last_token, self.first_byte)  # a proxy may hold it all back
            timeline.deliveries = self.deliveries
            timeline.num_tokens = self.num_tokens
            timeline.lost = server.lost
            timeline.verifications = server.verifications
        return RequestRecord(
            request_id=str(self.request.index),
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            finish_reason=FINISH_REASONS[self.outcome],
            timeline=timeline,
        )

    def row(self) -> dict[str, Any]:
        """A JSON-able dict; times in seconds."""
        request, server = self.request, self.timeline
        moments = ("intended", "sent", "accepted", "scheduled", "first_byte", "last_byte", "ended")
        scheduled = server.scheduled if server and self.completed else None
        return {
            "index": request.index,
            "session": request.session,
            "tenant": request.tenant,
            "input_toks": request.num_prompt_tokens,
            "output_toks": self.num_tokens,
            **{f"{name}_ts": scheduled if name == "scheduled" else getattr(self, name) for name in moments},
            "outcome": str(self.outcome),
            "attempts": self.attempts,
            "replica": self.replica,
            "cached_toks": self.num_cached_tokens,
        }

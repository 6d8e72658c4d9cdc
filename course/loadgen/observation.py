"""What a client saw of one request: moments, sizes, and why it failed if it did."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from course.loadgen.client import ClientExchange, Failure
from course.loadgen.stream import StreamedAnswer, read_answer
from minillm.core.brief import brief
from minillm.core.request import FinishReason
from minillm.core.timeline import Timeline
from minillm.observe.records import RequestRecord

COMPLETED = "completed"
CUT_OFF = "cut off"
"""The test was stopped while it was open."""
NEVER_SENT = "never sent"
"""The test was stopped before, or the turn it answers to has failed."""

Since = Literal["sent", "due"]
"""Where latency begins: when the request really left, or when it should have."""


class TokenSource(enum.StrEnum):
    """Where a number of output tokens comes from."""

    USAGE = "usage"
    EVENTS = "events"
    """The server did not say: one token an event is assumed, which is wrong where a server puts several into one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Moments in seconds after the test began; None = it never happened."""

    index: int
    outcome: str
    """COMPLETED, CUT_OFF, NEVER_SENT, or a Failure."""
    message: str
    status: int | None
    due: float | None
    sent: float | None
    ended: float | None
    """When the last byte had been read. Of a failure: when that was known."""
    deliveries: tuple[float, ...]
    """When each event that brought tokens had been read."""
    num_tokens: int
    token_source: TokenSource
    max_tokens: int
    prompt_tokens: int | None
    """Prompt tokens by the server's own count (`usage`)."""
    cached_tokens: int | None
    finish_reason: str | None
    server_times: dict[str, Any] = field(default_factory=dict)
    """The server's own word; see minillm/server/answers.py."""

    __repr__ = brief

    @property
    def completed(self) -> bool:
        return self.outcome == COMPLETED

    @property
    def late_s(self) -> float:
        """How much later than due it was sent."""
        return 0.0 if self.sent is None or self.due is None else max(self.sent - self.due, 0.0)

    def as_request_record(self, since: Since = "sent") -> RequestRecord | None:
        """The row that minillm.observe works with; None if it was never sent.

        A client cannot see queue and prefill apart: here everything before the first token is "prefill".
        """
        if self.sent is None:
            return None
        start = self.sent if since == "sent" or self.due is None else min(self.due, self.sent)
        timeline = Timeline(start, scheduled=start, finished=self.ended)
        if self.deliveries:
            timeline.prefill_end = timeline.first_token = self.deliveries[0]
            timeline.last_token, timeline.deliveries = self.deliveries[-1], list(self.deliveries)
            timeline.num_tokens = self.num_tokens
        return RequestRecord(
            request_id=str(self.index),
            num_prompt_tokens=self.prompt_tokens or 0,
            num_cached_tokens=self.cached_tokens or 0,
            finish_reason=self._finish_reason(),
            timeline=timeline,
        )

    def _finish_reason(self) -> FinishReason:
        if self.completed:
            return FinishReason.LENGTH if self.finish_reason == "length" else FinishReason.STOP
        if self.outcome == CUT_OFF:
            return FinishReason.ABORT
        return FinishReason.TIMEOUT if self.outcome == Failure.TIMEOUT else FinishReason.ERROR


def observe(exchange: ClientExchange, start: float, answer: StreamedAnswer | None = None) -> Observation:
    """One request, as far as it has got.

    Args:
        start: when the test began, on the client's clock.
        answer: what its stream has said, where it has been read already.
    """
    answer = answer or read_answer(exchange.reads)
    outcome, message = _outcome(exchange, answer)
    counted = _number(answer.usage.get("completion_tokens"))
    last_read = exchange.reads[-1][0] if exchange.reads else None

    def after(moment: float | None) -> float | None:
        return None if moment is None else moment - start

    return Observation(
        index=exchange.request.index,
        outcome=outcome,
        message=message,
        status=exchange.status,
        due=after(exchange.due),
        sent=after(exchange.sent),
        ended=after(last_read if outcome == COMPLETED else exchange.ended),
        deliveries=tuple(stamp - start for stamp in answer.token_moments),
        num_tokens=len(answer.deliveries) if counted is None else counted,
        token_source=TokenSource.EVENTS if counted is None else TokenSource.USAGE,
        max_tokens=exchange.request.max_tokens,
        prompt_tokens=_number(answer.usage.get("prompt_tokens")),
        cached_tokens=_cached_tokens(answer.usage),
        finish_reason=answer.finish_reason,
        server_times=answer.server_times,
    )


def _outcome(exchange: ClientExchange, answer: StreamedAnswer) -> tuple[str, str]:
    if not exchange.is_over:
        return NEVER_SENT if exchange.sent is None else CUT_OFF, ""
    if exchange.failure is not None:
        return exchange.failure, exchange.message
    if answer.error is not None:
        return Failure.BAD_STREAM, answer.error
    if not answer.is_whole:
        return Failure.BAD_STREAM, "it ended without a finish reason and without [DONE]"
    if not answer.token_moments:
        return Failure.BAD_STREAM, "an answer without any text"
    return COMPLETED, ""


def _number(value: Any) -> int | None:
    """What a server calls a number of tokens, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _cached_tokens(usage: dict[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    return _number(details.get("cached_tokens")) if isinstance(details, dict) else None


def on_even_schedule(observations: Sequence[Observation]) -> list[Observation]:
    """The requests of a closed loop, as if each had been due at its turn in an even stream of the same rate.

    A closed loop has no schedule: while the server stalls, it asks nothing, so the stall is in few samples.
    Users do not coordinate like that. Those who would have come meanwhile would have waited; counting from
    these moments shows it. It is the least that coordination hides: the same requests, in the same time.
    """
    sent = sorted((o.sent, o.index) for o in observations if o.sent is not None)
    if not sent:
        return list(observations)
    moments = np.linspace(sent[0][0], sent[-1][0], len(sent)).tolist()
    due = {index: moment for (_, index), moment in zip(sent, moments)}
    return [replace(o, due=due.get(o.index, o.due)) for o in observations]

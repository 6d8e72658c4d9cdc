"""The people who ask: when they send, how long they wait, and whether they ask again.

An open loop sends each request when it is due, whatever the service does: users do not know of each other.
A closed loop waits for an answer before it sends the next, as a load test with a fixed number of workers does:
when the service slows down, so does the test, and its queue stays out of sight on the client's side.
"""

from collections import deque
from collections.abc import Callable

from pydantic import Field, model_validator

from course.simulator.cluster.events import EventQueue
from course.simulator.cluster.jobs import Attempt, Reply
from course.simulator.cluster.network import Wire
from course.simulator.cluster.record import ClientRecord, Outcome
from course.simulator.cluster.retries import Retries, RetryPolicy
from course.simulator.workload.requests import Workload, answer_piece
from course.simulator.workload.streams import Streams


class ClientConfig(RetryPolicy):
    """How clients behave, retries included. The defaults are an open loop of people who wait for ever."""

    max_in_flight: int | None = Field(None, ge=1, description="closed loop: most requests open at once; None = open")
    timeout_s: float | None = Field(None, gt=0, description="patience until the last byte of an attempt, seconds")
    first_byte_timeout_s: float | None = Field(None, gt=0, description="patience until its first byte, seconds")
    cancel_on_timeout: bool = Field(True, description="giving up cancels the work; off = the service goes on")

    @model_validator(mode="after")
    def _order(self) -> "ClientConfig":
        first, whole = self.first_byte_timeout_s, self.timeout_s
        if first is not None and whole is not None and first > whole:
            raise ValueError(f"first_byte_timeout_s ({first}) must not be longer than timeout_s ({whole})")
        return self


class Clients:
    """All clients of a workload, and the record of what each saw.

    Args:
        progress: told the share of requests that have ended, each time that one does.
        on_end: told each record when it has ended. What it raises ends the run.
    """

    def __init__(
        self,
        workload: Workload,
        config: ClientConfig,
        events: EventQueue,
        streams: Streams,
        progress: Callable[[float], None] | None = None,
        on_end: Callable[[ClientRecord], None] | None = None,
    ) -> None:
        self.workload, self.config, self.events, self.streams = workload, config, events, streams
        self.records = [ClientRecord(request) for request in workload.requests]
        self.retries = Retries(config, lambda: streams.uniform("jitter"))
        self.num_open = 0
        """Requests begun and not ended yet."""
        self.num_left = len(self.records)
        """Requests that have not ended."""
        self._next_turn = {r.after: self.records[r.index] for r in workload.requests if r.after is not None}
        self._backlog: deque[ClientRecord] = deque()
        self._answers: dict[str, list[int]] = {}
        self._progress, self._on_end = progress, on_end
        self._wire: Wire

    def start(self, wire: Wire) -> None:
        """Enter all arrivals; the wire leads to the service."""
        self._wire = wire
        for record in self.records:
            if record.request.arrival is not None:
                self.events.at(record.request.arrival, self._intend, record)

    def _intend(self, record: ClientRecord) -> None:
        record.intended = self.events.now
        if self.config.max_in_flight is not None and self.num_open >= self.config.max_in_flight:
            self._backlog.append(record)
        else:
            self._begin(record)

    def _begin(self, record: ClientRecord) -> None:
        self.num_open += 1
        record.sent = self.events.now
        self._send(record)

    def _send(self, record: ClientRecord) -> None:
        ticket = self.retries.begin(self.events.now, is_retry=record.attempts > 0)
        if ticket is None:
            record.error = "the circuit breaker is open"
            self.events.after(0.0, self._end, record, Outcome.SHED)
            return
        record.tries.append(self.events.now)
        record.accepted = record.first_byte = record.replica = record.timeline = None  # only the last attempt counts
        attempt = Attempt(record, record.attempts, self.workload.prompt(record.request), self._answers, ticket)
        if self.config.timeout_s is not None:
            self.events.after(self.config.timeout_s, self._give_up, attempt)
        if self.config.first_byte_timeout_s is not None:
            self.events.after(self.config.first_byte_timeout_s, self._give_up_unless_begun, attempt)
        self._wire.send(attempt)

    def receive(self, attempt: Attempt, reply: Reply) -> None:
        """The last byte of a reply is there."""
        if attempt.closed:
            return  # the client has gone
        attempt.close()
        record = attempt.record
        record.replica, record.error = reply.replica, reply.error
        if reply.outcome is Outcome.SHED:
            self._retry_or_end(attempt, Outcome.SHED)
            return
        self.retries.end(attempt.ticket, self.events.now, ok=True)
        if reply.outcome is Outcome.COMPLETED:
            record.timeline, record.deliveries = reply.timeline, reply.deliveries
            record.first_byte, record.last_byte = reply.deliveries[0], self.events.now
            record.num_tokens = len(reply.token_ids)
            record.num_cached_tokens = reply.num_cached_tokens
            if record.request.index in self._next_turn:
                self._answers[answer_piece(record.request).name] = reply.token_ids
        self._end(record, reply.outcome)

    def _give_up_unless_begun(self, attempt: Attempt) -> None:
        if attempt.closed:
            return
        first_byte = self._wire.first_byte(attempt)
        if first_byte is None or first_byte > self.events.now:
            self._give_up(attempt)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.closed:
            return
        attempt.closed = True
        record = attempt.record
        first_byte = self._wire.first_byte(attempt)
        if first_byte is not None and first_byte <= self.events.now:
            record.first_byte = first_byte
        if attempt.shown and attempt.shown[-1].replica is not None:
            record.replica = attempt.shown[-1].replica.name
        if attempt.shown and attempt.shown[-1].request is not None:
            record.timeline = attempt.shown[-1].request.timeline
        if self.config.cancel_on_timeout:
            self._wire.cancel(attempt)
        self._retry_or_end(attempt, Outcome.TIMEOUT)

    def _retry_or_end(self, attempt: Attempt, outcome: Outcome) -> None:
        record = attempt.record
        self.retries.end(attempt.ticket, self.events.now, ok=False)
        pause = self.retries.pause(record.attempts)
        if pause is None:
            self._end(record, outcome)
        else:
            self.events.after(pause, self._send, record)

    def _end(self, record: ClientRecord, outcome: Outcome) -> None:
        self.num_open -= 1
        self._close(record, outcome)
        next_turn = self._next_turn.get(record.request.index)
        if next_turn is not None:
            if outcome is Outcome.COMPLETED:
                self.events.after(next_turn.request.think_s, self._intend, next_turn)
            else:
                self._skip(next_turn)
        if self._backlog:
            self._begin(self._backlog.popleft())

    def _skip(self, record: ClientRecord | None) -> None:
        """Without an answer there is nothing to reply to: the rest of the conversation does not happen."""
        while record is not None:
            self._close(record, Outcome.SKIPPED)
            record = self._next_turn.get(record.request.index)

    def _close(self, record: ClientRecord, outcome: Outcome) -> None:
        assert record.outcome is None, f"request {record.request.index} ended twice"
        record.outcome, record.ended = outcome, self.events.now
        self.num_left -= 1
        if self._progress is not None:
            self._progress(1 - self.num_left / len(self.records))
        if self._on_end is not None:
            self._on_end(record)

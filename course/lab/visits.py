"""One request's stamps: it arrives, waits, is scheduled, gets its first token, finishes.

Runs of the real engine and of the simulator become the same list, so that every picture draws both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.lab.run import Run
from course.simulator.cluster.record import ClientRecord, Outcome
from course.simulator.cluster.run import FleetRun

ENDINGS = {
    Outcome.COMPLETED: "answered",
    Outcome.SHED: "refused",
    Outcome.ERROR: "refused",
    Outcome.TIMEOUT: "gave up",
    Outcome.SKIPPED: "gave up",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """Moments in seconds after the run began; None = it has not happened."""

    index: int
    arrival: float
    scheduled: float | None
    """It left the queue: the first step that computed something for it began."""
    first: float | None
    """Its first token."""
    left: float | None
    """Its last token; or the moment at which it was refused, or gave up."""
    prompt: int
    output: int
    ending: str | None
    """answered, refused, gave up; None while it waits or runs."""

    @property
    def wait(self) -> float | None:
        """Seconds in the queue, of a request that got a slot."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.arrival

    def is_waiting(self, now: float) -> bool:
        end = self.left if self.scheduled is None else self.scheduled
        return self.arrival <= now and (end is None or now < end)

    def is_running(self, now: float) -> bool:
        return self.scheduled is not None and self.scheduled <= now and (self.left is None or now < self.left)


def visits_of(run: Run | FleetRun) -> list[Visit]:
    """The visits, in order of arrival."""
    if isinstance(run, FleetRun):
        found = [_of_record(i, record) for i, record in enumerate(run.records)]
    else:
        found = [_of_row(run, row) for row in run.rows]
    return [visit for visit in found if visit is not None]


def _of_row(run: Run, row) -> Visit | None:
    if row.refused is not None:
        return Visit(row.index, row.sent, None, None, row.sent, 0, 0, "refused")
    if row.view is None:
        return None
    view = row.view
    arrival, scheduled, _, _, last, end = (border - run.start for border in view.borders)
    was_scheduled = bool(view.num_computed_tokens or view.deliveries) or view.phase not in ("queue", None)
    first = view.deliveries[0] - run.start if view.deliveries else None
    ending = None
    if view.finish_reason is not None:
        ending = "answered" if view.finish_reason in ("stop", "length") else "gave up"
    left = None if ending is None else (last if was_scheduled else end)
    began = scheduled if was_scheduled else None
    return Visit(row.index, arrival, began, first, left, view.num_prompt_tokens, view.max_tokens, ending)


def _of_record(index: int, record: ClientRecord) -> Visit | None:
    if record.intended is None:
        return None
    line, asked = record.timeline if record.completed else None, record.request
    began, left = (line.scheduled, line.last_token) if line else (None, record.ended)
    tokens, ending = (asked.num_prompt_tokens, asked.output_tokens), ENDINGS[record.outcome]
    return Visit(index, record.intended, began, record.first_byte, left, *tokens, ending)


def waits(visits: Iterable[Visit]) -> list[float]:
    """Seconds in the queue, of all requests that got a slot."""
    return [visit.wait for visit in visits if visit.wait is not None]


def mean(values: Sequence[float]) -> float:
    """0 for no values: no request waited."""
    return sum(values) / len(values) if values else 0.0


def queue_length(visits: Sequence[Visit], now: float) -> int:
    return sum(visit.is_waiting(now) for visit in visits)


def longest_queue(visits: Sequence[Visit]) -> int:
    """A queue is longest at the moment a request joins it."""
    return max((queue_length(visits, visit.arrival) for visit in visits), default=0)


def end_of(visits: Sequence[Visit]) -> float:
    """The last moment at which anything happened."""
    return max((v.left or v.first or v.scheduled or v.arrival for v in visits), default=0.0)

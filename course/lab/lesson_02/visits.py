"""A request as a visitor: it arrives, stands in line, takes a seat, gets its first token, leaves.

Runs of the real engine and of the simulator become the same list of visits, so that every picture draws both.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.lab.run import Run
from minillm.simulate.cluster.record import ClientRecord, Outcome
from minillm.simulate.cluster.run import FleetRun

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
    seated: float | None
    """It left the line: the first step that computed something for it began."""
    first: float | None
    """Its first token."""
    left: float | None
    """Its last token; or the moment at which it was refused, or gave up."""
    prompt: int
    output: int
    ending: str | None
    """answered, refused, gave up; None while it is in the building."""

    @property
    def wait(self) -> float | None:
        """Seconds in line, of whoever got a seat."""
        return None if self.seated is None else self.seated - self.arrival

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.arrival

    def in_line(self, now: float) -> bool:
        end = self.left if self.seated is None else self.seated
        return self.arrival <= now and (end is None or now < end)

    def on_seat(self, now: float) -> bool:
        return self.seated is not None and self.seated <= now and (self.left is None or now < self.left)


def visits_of(run: Run | FleetRun) -> list[Visit]:
    """In order of arrival."""
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
    arrival, seated, _, _, last, end = (border - run.start for border in view.borders)
    was_seated = bool(view.num_computed_tokens or view.deliveries) or view.phase not in ("queue", None)
    first = view.deliveries[0] - run.start if view.deliveries else None
    ending = None
    if view.finish_reason is not None:
        ending = "answered" if view.finish_reason in ("stop", "length") else "gave up"
    left = None if ending is None else (last if was_seated else end)
    return Visit(
        row.index, arrival, seated if was_seated else None, first, left, view.num_prompt_tokens, view.max_tokens, ending
    )


def _of_record(index: int, record: ClientRecord) -> Visit | None:
    if record.intended is None:
        return None
    line = record.timeline if record.completed else None
    return Visit(
        index,
        record.intended,
        line.scheduled if line else None,
        record.first_byte,
        line.last_token if line else record.ended,
        record.request.num_prompt_tokens,
        record.request.output_tokens,
        ENDINGS[record.outcome],
    )


def waits(visits: Iterable[Visit]) -> list[float]:
    """Seconds in line of everybody who got a seat."""
    return [visit.wait for visit in visits if visit.wait is not None]


def mean(values: Sequence[float]) -> float:
    """0 for no values: nobody waited."""
    return sum(values) / len(values) if values else 0.0


def line_length(visits: Sequence[Visit], now: float) -> int:
    return sum(visit.in_line(now) for visit in visits)


def longest_line(visits: Sequence[Visit]) -> int:
    """A line is longest at the moment somebody joins it."""
    return max((line_length(visits, visit.arrival) for visit in visits), default=0)


def end_of(visits: Sequence[Visit]) -> float:
    """The last moment at which anything happened."""
    return max((v.left or v.first or v.seated or v.arrival for v in visits), default=0.0)


def empty_seat_share(visits: Sequence[Visit], seats: int) -> float:
    """Of all seat time while somebody stood in line, the share in which the seat was empty."""
    borders = sorted({m for v in visits for m in (v.arrival, v.seated, v.left) if m is not None})
    empty = total = 0.0
    for start, end in itertools.pairwise(borders):
        middle = (start + end) / 2
        if line_length(visits, middle):
            total += seats * (end - start)
            empty += max(seats - sum(v.on_seat(middle) for v in visits), 0) * (end - start)
    return empty / total if total else 0.0

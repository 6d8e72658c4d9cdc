"""Many requests in a few numbers: latency percentiles, phase shares, throughput, goodput.

Percentiles are taken over the raw samples, by linear interpolation. They are never averaged: the
mean of two p99s is not the p99 of anything.

Distributions and rates speak of completed requests (they ended by stop or length). Requests that
failed (aborted, timed out, error) are counted beside them and can never be part of goodput: a
server that sheds its slow requests must not look fast for it, so read `counts` first.
"""

import html
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minillm.core.brief import brief
from minillm.core.timeline import PHASES, Timeline
from minillm.observe.percentiles import percentile
from minillm.observe.records import Recordable, RequestRecord, as_records
from minillm.observe.speculation import SpeculationSummary
from minillm.observe.tables import text_table

METRICS = ("ttft", "itl", "tpot", "e2e")
COLUMNS = ("count", "mean", "p50", "p95", "p99", "max")
"""What a Distribution is told by, in every table."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Samples in seconds. All numbers but the count are None when there are no samples."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Distribution":
        if not samples:
            return cls(0, None, None, None, None, None)
        ordered = sorted(samples)  # once: a simulated run has millions of gaps, and to sort them again is quick
        p50, p95, p99 = (percentile(ordered, q) for q in (50, 95, 99))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p95, p99, ordered[-1])

    def cells(self) -> list[str]:
        """A table's cells under COLUMNS: the count, then milliseconds."""
        return [str(self.count), *(milliseconds(getattr(self, column)) for column in COLUMNS[1:])]


def milliseconds(seconds: float | None) -> str:
    """Milliseconds as every table has them: one decimal, and a dash for what was never measured."""
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


@dataclass(frozen=True, slots=True)
class SLO:
    """Service-level objective: upper limits in seconds; None = not stated."""

    ttft: float | None = None
    itl: float | None = None
    """Judged by the request's largest gap: a reader notices the one stall, not its rank among the gaps."""
    tpot: float | None = None
    """A request of one token has no gap and no TPOT, and meets any limit on them."""
    e2e: float | None = None

    def met_by(self, timeline: Timeline) -> bool:
        """Whether a completed request met every stated limit. Exactly at a limit is met."""
        pairs = (
            (self.ttft, timeline.ttft),
            (self.itl, 0.0 if self.itl is None else max(timeline.itl, default=0.0)),  # a long answer has many gaps
            (self.tpot, timeline.tpot or 0.0),
            (self.e2e, timeline.e2e),
        )
        return all(limit is None or (value is not None and value <= limit) for limit, value in pairs)


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one run. Times in seconds; prints as a table in milliseconds."""

    counts: dict[str, int]
    """Requests by how they ended: stop, length, abort, timeout, error; "in flight" for those that have not."""
    duration: float
    """Seconds from the first arrival to the last end (or, in flight, the last delivery)."""
    metrics: dict[str, Distribution]
    """ttft, tpot, e2e: one sample per request. itl: the raw gaps of all requests, pooled."""
    phases: dict[str, Distribution]
    phase_shares: dict[str, float]
    """The share of all completed requests' seconds that was spent in each phase. They sum to 1."""
    lost: dict[str, float]
    """Seconds lost inside phases, by cause, over all completed requests."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    slo: SLO | None
    goodput: float | None
    """Completed requests per second that met every stated limit of the SLO."""
    attainment: float | None
    """Requests that met the SLO, as a share of all that ended, failures included."""
    speculation: SpeculationSummary
    """What became of the drafts of completed requests."""

    __repr__ = brief

    def __str__(self) -> str:
        return "\n".join([text_table(("ms", *COLUMNS, "share"), self._table()), *self._notes()])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _table(self) -> list[list[str]]:
        """Rows ready to print: metrics, then phases."""
        rows = [[name.upper(), *d.cells(), ""] for name, d in self.metrics.items()]
        rows += [[phase, *d.cells(), f"{self.phase_shares[phase]:.0%}"] for phase, d in self.phases.items()]
        return rows

    def _notes(self) -> list[str]:
        notes = [
            "requests: " + (", ".join(f"{n} {reason}" for reason, n in self.counts.items()) or "none"),
            f"in {self.duration:.2f} s: {self.requests_per_s:.2f} requests/s, "
            f"{self.prompt_tokens_per_s:.0f} prompt and {self.output_tokens_per_s:.0f} output tokens/s",
        ]
        if self.lost:
            notes.append(
                "lost: " + ", ".join(f"{seconds * 1e3:.0f} ms {cause}" for cause, seconds in self.lost.items())
            )
        if self.speculation.num_verifications:
            notes.append(str(self.speculation))
        if self.slo is not None:
            stated = ((name, getattr(self.slo, name)) for name in METRICS)
            limits = ", ".join(f"{name.upper()} <= {limit * 1e3:g} ms" for name, limit in stated if limit is not None)
            met = "no request has ended" if self.attainment is None else f"{self.attainment:.0%} of requests met it"
            notes.append(f"goodput: {self.goodput:.2f} requests/s with {limits or 'no limits'}; {met}")
        return notes


def summarize(requests: Iterable[Recordable], slo: SLO | None = None, duration: float | None = None) -> Summary:
    """Summarize a run.

    Args:
        requests: outputs, requests or records, finished or not, in any order.
        slo: what goodput is measured against.
        duration: seconds that rates are divided by; None = from the first arrival to the last end.
    """
    records = as_records(requests)
    completed = [record for record in records if record.completed]
    ended = [record for record in records if record.finish_reason is not None]
    if duration is None:
        duration = max(map(_last_stamp, records)) - records[0].timeline.arrival if records else 0.0
    of_each = [record.timeline.phases() for record in completed]
    phases = {phase: [seconds[phase] for seconds in of_each] for phase in PHASES}
    total = sum(sum(samples) for samples in phases.values())
    lost: Counter[str] = Counter()
    for record in completed:
        lost.update(record.timeline.lost)
    num_good = sum(slo.met_by(record.timeline) for record in completed) if slo else 0

    def rate(amount: float) -> float:
        return amount / duration if duration > 0 else 0.0

    return Summary(
        counts=dict(Counter(str(record.finish_reason or "in flight") for record in records)),
        duration=duration,
        metrics=_metrics(completed),
        phases={phase: Distribution.of(samples) for phase, samples in phases.items()},
        phase_shares={phase: sum(samples) / total if total else 0.0 for phase, samples in phases.items()},
        lost=dict(lost),
        requests_per_s=rate(len(completed)),
        prompt_tokens_per_s=rate(sum(record.num_prompt_tokens for record in completed)),
        output_tokens_per_s=rate(sum(record.timeline.num_tokens for record in completed)),
        slo=slo,
        goodput=rate(num_good) if slo else None,
        attainment=num_good / len(ended) if slo and ended else None,
        speculation=SpeculationSummary.of_requests(completed),
    )


def _metrics(records: Sequence[RequestRecord]) -> dict[str, Distribution]:
    timelines = [record.timeline for record in records]
    return {
        "ttft": Distribution.of([t.ttft for t in timelines if t.ttft is not None]),
        "itl": Distribution.of([gap for t in timelines for gap in t.itl]),
        "tpot": Distribution.of([t.tpot for t in timelines if t.tpot is not None]),
        "e2e": Distribution.of([t.e2e for t in timelines if t.e2e is not None]),
    }


def _last_stamp(record: RequestRecord) -> float:
    timeline = record.timeline
    stamps = (timeline.arrival, timeline.scheduled, timeline.prefill_end, timeline.last_token, timeline.finished)
    return max(stamp for stamp in stamps if stamp is not None)

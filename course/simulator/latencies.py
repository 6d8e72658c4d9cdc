"""Latencies and rates of simulated requests, as every report states them, and how far they are from measured ones."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from minillm.core.timeline import Timeline
from minillm.observe.percentiles import percentile
from minillm.observe.records import Recordable, RequestRecord, as_records

DIGITS = 9
"""Times are reported to the nanosecond: the last bit may depend on the machine."""
METRICS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
Latencies = tuple[float | None, ...]
"""In the order of METRICS, seconds."""
SummaryDict = dict[str, dict[str, float | None]]
"""`{ttft_s, tpot_s, e2e_s, queue_s}` to `{mean, p50, p90, p99}`."""


def latencies(timeline: Timeline) -> Latencies:
    """The four metrics of a finished request."""
    queue = None if timeline.scheduled is None else timeline.scheduled - timeline.arrival
    return timeline.ttft, timeline.tpot, timeline.e2e, queue


def summary_of(requests: Iterable[Recordable]) -> SummaryDict:
    """Latencies of finished requests."""
    return summarize_latencies([latencies(record.timeline) for record in as_records(requests)])


def summarize_latencies(rows: Sequence[Latencies]) -> SummaryDict:
    """Mean and percentiles (by linear interpolation) of each metric; None where no request has it."""
    summary: SummaryDict = {}
    for i, metric in enumerate(METRICS):
        values = [value for row in rows if (value := row[i]) is not None]
        figures: list[float | None] = [None] * (1 + len(PERCENTILES))
        if values:
            numbers = (math.fsum(values) / len(values), *(percentile(values, q) for q in PERCENTILES.values()))
            figures = [round(number, DIGITS) for number in numbers]
        summary[metric] = dict(zip(("mean", *PERCENTILES), figures))
    return summary


def error_percent(simulated: SummaryDict, measured: SummaryDict) -> SummaryDict:
    """How far each simulated number is from the measured one, in percent of it."""

    def error(ours: float | None, theirs: float | None) -> float | None:
        return None if ours is None or not theirs else round(100 * (ours / theirs - 1), 2)

    return {
        metric: {part: error(simulated[metric][part], wanted) for part, wanted in parts.items()}
        for metric, parts in measured.items()
    }


def rates(requests: Iterable[Recordable], seconds: float | None = None) -> dict[str, float]:
    """Finished requests and tokens per second.

    Args:
        seconds: what they are divided by; None = from the first of these arrivals to the last of these ends. Where
            other requests came to nothing, theirs count as well: what was answered early isn't all that time was for.
    """
    records = as_records(requests)
    amounts = {
        "requests_per_s": len(records),
        "input_tokens_per_s": sum(record.num_prompt_tokens for record in records),
        "output_tokens_per_s": sum(record.timeline.num_tokens for record in records),
    }
    ends = [record.timeline.finished for record in records if record.timeline.finished is not None]
    if seconds is None:
        seconds = max(ends) - records[0].timeline.arrival if ends else 0.0
    return {name: round(amount / seconds, 6) if seconds > 0 else 0.0 for name, amount in amounts.items()}


def row_of(record: RequestRecord) -> dict[str, Any]:
    """One finished request, ready for JSON."""
    times = dict(zip(METRICS, latencies(record.timeline)))
    return {
        "request_id": record.request_id,
        "input_toks": record.num_prompt_tokens,
        "output_toks": record.timeline.num_tokens,
        "queued_s": round(record.timeline.arrival, DIGITS),
        **{name: value if value is None else round(value, DIGITS) for name, value in times.items()},
    }

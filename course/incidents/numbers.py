"""Small sums over a run that several questions share."""

from collections.abc import Callable, Iterable, Sequence

from course.incidents.service import ServicePlay
from course.lab.run import percentile
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.run import Sample
from minillm.core.timeline import PHASES

BINS = 20
QS = (50, 95, 99)
OUTSIDE = "outside_the_engine"
"""Where time passes that no engine sees: clients, network, gateway."""
PLACES = (*PHASES, OUTSIDE)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 and the largest; None where there is nothing."""
    ordered = sorted(values)  # once: sorting it again for each percentile is then little work
    return {**{f"p{q}": percentile(ordered, q) for q in QS}, "max": ordered[-1] if ordered else None}


def answered(play: ServicePlay) -> list[ClientRecord]:
    return [record for record in play.run.records if record.completed]


def latencies(play: ServicePlay) -> dict[str, list[float]]:
    """What an SLO limits, of every request that was answered in full, as its client saw it: seconds, by the name of the
    limit."""
    whole = (record for record in answered(play) if record.request.index not in play.cut)
    rows = [record.as_request_record("intended").timeline for record in whole]
    return {
        "ttft": [row.ttft for row in rows],
        "itl": [max(row.itl, default=0.0) for row in rows],
        "tpot": [row.tpot or 0.0 for row in rows],
        "e2e": [row.e2e for row in rows],
    }


def time_by_place(play: ServicePlay) -> dict[str, list[float]]:
    """Seconds of every answered request in each phase, by its engine's stamps, and outside the engine."""
    done = answered(play)
    spent = [record.timeline.phases() for record in done]
    times = {phase: [each[phase] for each in spent] for phase in PHASES}
    return {**times, OUTSIDE: [max(record.e2e("intended") - record.timeline.e2e, 0.0) for record in done]}


def per_second(moments: Iterable[float], duration: float) -> tuple[list[float], list[float]]:
    """Middles of equal bins, and how many moments a second fell into each."""
    width = duration / BINS
    counts = [0] * BINS
    for moment in moments:
        if 0 <= moment < duration:
            counts[min(int(moment / width), BINS - 1)] += 1
    return [(i + 0.5) * width for i in range(BINS)], [count / width for count in counts]


def over_time(
    play: ServicePlay, value: Callable[[Sample], float], together: str = "sum"
) -> tuple[list[float], list[float]]:
    """A quantity of all replicas at each sample, added up or averaged."""
    moments: dict[float, list[float]] = {}
    for sample in play.run.samples:
        moments.setdefault(sample.moment, []).append(value(sample))
    joined = {t: sum(v) if together == "sum" else sum(v) / len(v) for t, v in moments.items()}
    return list(joined), list(joined.values())


def waiting_while_traffic_comes(play: ServicePlay) -> list[float]:
    """Requests that wait, at each sample; what only drains after the last arrival is left out."""
    return [n for t, n in zip(*over_time(play, lambda sample: sample.waiting)) if t <= play.service.duration_s] or [0]


def seconds_per_thousand(play: ServicePlay) -> float | None:
    """Seconds that a thousand prompt tokens take, over steps that mostly prefill; None without any."""
    reading = [step for step in play.steps if 2 * step.prompt_tokens >= step.tokens]
    tokens = sum(step.prompt_tokens for step in reading)
    return 1000 * sum(step.seconds for step in reading) / tokens if tokens else None

"""Small sums over a run that several questions share."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from course.lab.incidents.service import Play
from course.lab.run import percentile
from minillm.simulate.cluster.record import ClientRecord
from minillm.simulate.cluster.run import Sample

BINS = 20
QS = (50, 95, 99)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 and the largest; None where there is nothing."""
    if not values:
        return {**{f"p{q}": None for q in QS}, "max": None}
    return {**{f"p{q}": percentile(values, q) for q in QS}, "max": max(values)}


def frame(rows: dict[str, dict[str, object]], name: str = "") -> pd.DataFrame:
    """A table with a row for each key."""
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = name or None
    return table


def answered(play: Play) -> list[ClientRecord]:
    return [record for record in play.run.records if record.completed]


def per_second(moments: Iterable[float], duration: float) -> tuple[list[float], list[float]]:
    """Middles of equal bins, and how many moments a second fell into each."""
    width = duration / BINS
    counts = [0] * BINS
    for moment in moments:
        if 0 <= moment < duration:
            counts[min(int(moment / width), BINS - 1)] += 1
    return [(i + 0.5) * width for i in range(BINS)], [count / width for count in counts]


def over_time(play: Play, value: Callable[[Sample], float], together: str = "sum") -> tuple[list[float], list[float]]:
    """A quantity of all replicas at each sample, added up or averaged."""
    moments: dict[float, list[float]] = {}
    for sample in play.run.samples:
        moments.setdefault(sample.moment, []).append(value(sample))
    joined = {t: sum(v) if together == "sum" else sum(v) / len(v) for t, v in moments.items()}
    return list(joined), list(joined.values())


def gaps_of(record: ClientRecord, at_client: bool) -> list[float]:
    """Seconds between an answer's tokens, as the client or the server stamped them."""
    stamps = record.deliveries if at_client else record.timeline.deliveries
    return [b - a for a, b in itertools.pairwise(stamps)]


def seconds_per_thousand(play: Play) -> float | None:
    """Seconds that a thousand prompt tokens take, over steps that mostly read prompts; None without any."""
    reading = [step for step in play.steps if 2 * step.prompt_tokens >= step.tokens]
    tokens = sum(step.prompt_tokens for step in reading)
    return 1000 * sum(step.seconds for step in reading) / tokens if tokens else None


def seats(play: Play) -> int:
    return play.service.engine.max_num_seqs

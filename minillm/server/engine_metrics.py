"""The engine's metrics. The engine thread counts every step as it is written down; whoever scrapes only reads.

So the totals are exact however often one looks, and whoever else does. A scrape is a copy that is taken
between two steps: in it, all numbers fit together.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from minillm.core.timeline import StepRecord
from minillm.frontend.engine import Engine

SECONDS = tuple(base * scale for scale in (0.0001, 0.001, 0.01, 0.1, 1, 10) for base in (1, 2, 5)) + (100, 200, 500)
"""0.1 ms to 500 s. vLLM's buckets of the queue time begin at 300 ms: a queue of 1 ms and one of 200 look the same."""
TOKENS = tuple(2**power for power in range(18))
LABELS = ("model_name",)


class Tally:
    """A histogram that one thread fills. The library's own takes a lock for each value."""

    def __init__(self, borders: tuple[float, ...]) -> None:
        self.borders = borders
        self.counts = [0] * (len(borders) + 1)
        """By bucket; the last is for what lies beyond all borders."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.borders, value)] += 1
        self.sum += value

    def copy(self) -> "Tally":
        same = Tally(self.borders)
        same.counts, same.sum = self.counts.copy(), self.sum
        return same

    def family(self, name: str, text: str, model_name: str) -> Metric:
        """As Prometheus has it: each bucket counts what is at most its border."""
        names = (*map(floatToGoString, self.borders), "+Inf")
        buckets = list(zip(names, accumulate(self.counts)))
        made = HistogramMetricFamily(f"minillm:{name}", text, labels=LABELS)
        made.add_metric([model_name], buckets, self.sum)
        return made


class StepTally:
    """All steps that an engine has finished. Belongs to the engine thread."""

    def __init__(self) -> None:
        self.tokens = Tally(TOKENS)
        self.seconds = Tally(SECONDS)

    def add(self, record: StepRecord) -> None:
        self.tokens.add(record.num_tokens)
        self.seconds.add(record.end - record.start)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment, and all that it has counted until then."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV blocks that some request holds, 0 to 1."""
    prefix_queries: int
    prefix_hits: int
    num_preemptions: int
    step_tokens: Tally
    step_seconds: Tally

    @classmethod
    def of(cls, engine: Engine, steps: StepTally) -> "EngineStats":
        """Called in the engine thread, between two steps."""
        scheduler = engine.scheduler
        return cls(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_usage=scheduler.kv.pool.num_used / len(scheduler.kv.pool),
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            step_tokens=steps.tokens.copy(),
            step_seconds=steps.seconds.copy(),
        )

    def families(self, model_name: str) -> Iterator[Metric]:
        """For Prometheus."""
        gauges = (
            ("num_requests_running", "Sequences in the engine's batch.", self.num_running),
            ("num_requests_waiting", "Sequences waiting to be scheduled.", self.num_waiting),
            ("kv_cache_usage_perc", "KV blocks held by requests; 1 = all of them.", self.kv_usage),
        )
        counters = (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", self.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there.", self.prefix_hits),
            ("num_preemptions", "Times that a request's KV blocks were taken away.", self.num_preemptions),
        )
        for kind, described in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, text, value in described:
                made = kind(f"minillm:{name}", text, labels=LABELS)
                made.add_metric([model_name], value)
                yield made
        yield self.step_tokens.family("iteration_tokens_total", "Tokens computed in one step.", model_name)
        yield self.step_seconds.family("step_time_seconds", "One engine step.", model_name)

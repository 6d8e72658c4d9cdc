"""Prometheus metrics: vLLM's names under `minillm:`, with buckets in which a healthy queue can be seen.

The engine thread counts every step as it is recorded, and a scrape copies the counts between two steps: totals are
exact however often one looks, and in one scrape all numbers fit together. What happened to requests is added up when
each is over, in the event loop, so a long stream appears at its end.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from minillm.core.timeline import PHASES, StepRecord
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import Completion
from minillm.server.calls import Call

SECONDS = tuple(base * scale for scale in (0.0001, 0.001, 0.01, 0.1, 1, 10) for base in (1, 2, 5)) + (100, 200, 500)
"""0.1 ms to 500 s. vLLM's buckets of the queue time begin at 300 ms: a queue of 1 ms and one of 200 look the same."""
TOKENS = tuple(2**power for power in range(18))
LABELS = ("model_name",)

disable_created_metrics()  # a time of birth beside each counter: twice the lines, and no dashboard uses them


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

    def family(self, name: str, text: str, model_name: str) -> Metric:
        """As Prometheus has it: each bucket counts what is at most its border."""
        names = (*map(floatToGoString, self.borders), "+Inf")
        made = HistogramMetricFamily(f"minillm:{name}", text, labels=LABELS)
        made.add_metric([model_name], list(zip(names, accumulate(self.counts))), self.sum)
        return made


class Metrics:
    """All metrics of one server. It observes steps and calls; `/metrics` has the engine thread look, then renders."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._step_tokens, self._step_seconds = Tally(TOKENS), Tally(SECONDS)  # belong to the engine thread
        self._last: list[Metric] = []
        ProcessCollector(registry=self.registry)

        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that are over.")
        self._output_tokens = self._counter("generation_tokens", "Output tokens of requests that are over.")
        self._success = self._counter("request_success", "Sequences answered, by reason.", "finished_reason")
        self._requests = self._counter("http_requests", "API requests, by outcome.", "path", "status", "outcome")
        self._degraded = self._counter("requests_degraded", "Answers made smaller on purpose.", "how")

        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token handed over.")
        self._itl = Tally(SECONDS)  # the one that gets a value for each token
        self._tpot = self._histogram("request_time_per_output_token_seconds", "(E2E - TTFT) / (n - 1) of a request.")
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last byte accepted.")
        self._inference = self._histogram("request_inference_time_seconds", "First scheduled to last token.")
        self._phases = {
            phase: self._histogram(f"request_{phase}_time_seconds", f"The {phase.replace('_', ' ')} phase.")
            for phase in PHASES
        }
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_output = self._histogram("request_generation_tokens", "Output tokens of a sequence.", TOKENS)
        self._request_limit = self._histogram("request_params_max_tokens", "max_tokens of a request.", TOKENS)

    # ---------------------------------------------------------------- the engine

    def attach(self, engine: Engine) -> None:
        """Count the engine's steps from now on. To be called once, in the engine thread."""
        engine.log.listeners.append(self._count_step)
        self.look(engine)

    def _count_step(self, record: StepRecord) -> None:
        self._step_tokens.add(record.num_tokens)
        self._step_seconds.add(record.end - record.start)

    def look(self, engine: Engine) -> None:
        """Copy what the engine counts. Called in the engine thread, between two steps, before `render`."""
        scheduler = engine.scheduler
        pool = scheduler.kv.pool
        gauges = (
            ("num_requests_running", "Sequences in the engine's batch.", len(scheduler.running)),
            ("num_requests_waiting", "Sequences waiting to be scheduled.", len(scheduler.waiting)),
            ("kv_cache_usage_perc", "KV blocks held by requests; 1 = all of them.", pool.num_used / len(pool)),
        )
        counters = (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", scheduler.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there.", scheduler.prefix_hits),
            ("num_preemptions", "Times that a request's KV blocks were taken away.", scheduler.num_preemptions),
        )
        families: list[Metric] = []
        for kind, described in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, text, value in described:
                made = kind(f"minillm:{name}", text, labels=LABELS)
                made.add_metric([self.model_name], value)
                families.append(made)
        tallies = (
            ("iteration_tokens_total", "Tokens computed in one step.", self._step_tokens),
            ("step_time_seconds", "One engine step.", self._step_seconds),
        )
        self._last = families + [tally.family(name, text, self.model_name) for name, text, tally in tallies]

    def render(self) -> bytes:
        """Prometheus text, with what was last seen of the engine."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """As the library asks a registry."""
        yield from self.registry.collect()
        yield self._itl.family("inter_token_latency_seconds", "Gaps between deliveries.", self.model_name)
        yield from self._last

    # ---------------------------------------------------------------- requests, when they are over

    def observe(self, call: Call) -> None:
        status = str(call.status) if call.status is not None else "none"
        self._requests.labels(self.model_name, call.path, status, call.outcome).inc()
        if call.degraded is not None:
            self._degraded.labels(self.model_name, call.degraded).inc()
        if call.max_tokens is not None:
            self._request_limit.observe(call.max_tokens)
        for output in call.outputs:
            self._prompt_tokens.inc(len(output.prompt_token_ids))
            self._request_prompt.observe(len(output.prompt_token_ids))
            for completion in output.completions:
                self._output_tokens.inc(len(completion.token_ids))
                if call.outcome == "ok":
                    self._observe_answer(completion)

    def _observe_answer(self, completion: Completion) -> None:
        timeline = completion.timeline
        assert completion.finish_reason is not None
        self._success.labels(self.model_name, completion.finish_reason.value).inc()
        self._request_output.observe(len(completion.token_ids))
        if timeline.first_token is None:
            return
        assert timeline.ttft is not None and timeline.e2e is not None
        assert timeline.last_token is not None and timeline.scheduled is not None
        self._ttft.observe(timeline.ttft)
        self._e2e.observe(timeline.e2e)
        self._inference.observe(timeline.last_token - timeline.scheduled)
        for phase, seconds in timeline.phases().items():
            self._phases[phase].observe(seconds)
        for gap in timeline.itl:
            self._itl.add(gap)
        if timeline.tpot is not None:
            self._tpot.observe(timeline.tpot)

    # ---------------------------------------------------------------- making them

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        """With labels of its own, it still wants `labels(model, ...)`."""
        counter = Counter(f"minillm:{name}", text, [*LABELS, *labels], registry=self.registry)
        return counter if labels else counter.labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        made = Histogram(f"minillm:{name}", text, LABELS, buckets=buckets, registry=self.registry)
        return made.labels(self.model_name)

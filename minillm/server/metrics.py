"""Prometheus metrics: vLLM's names under `minillm:`, with buckets in which a healthy queue can be seen.

The engine thread counts steps (engine_metrics.py). What happened to requests is added up when each is over,
in the event loop, so a long stream appears at its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from minillm.core.known import known
from minillm.core.timeline import PHASES
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import Completion
from minillm.server.call import Call
from minillm.server.engine_metrics import LABELS, SECONDS, TOKENS, EngineStats, StepTally, Tally

disable_created_metrics()  # a time of birth beside each counter: twice the lines, and nobody reads them


@dataclass(frozen=True)
class Scrape:
    """What one scrape shows, as the library wants to have it."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


class Metrics:
    """All metrics of one server. It observes steps and calls; `/metrics` asks the engine and then renders."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._steps = StepTally()
        self._last: EngineStats | None = None
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
        engine.log.listeners.append(self._steps.add)
        self.look(engine)

    def look(self, engine: Engine) -> EngineStats:
        """To be asked in the engine thread; the answer goes to `render`."""
        self._last = EngineStats.of(engine, self._steps)
        return self._last

    def render(self, stats: EngineStats | None) -> bytes:
        """Prometheus text. None: the engine has stopped; what was last seen of it is shown."""
        return generate_latest(Scrape(list(self._families(stats or self._last))))

    def _families(self, stats: EngineStats | None) -> Iterator[Metric]:
        yield from self.registry.collect()
        text = "Gaps between deliveries."
        yield self._itl.family("inter_token_latency_seconds", text, self.model_name)
        if stats is not None:
            yield from stats.families(self.model_name)

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
        self._success.labels(self.model_name, known(completion.finish_reason).value).inc()
        self._request_output.observe(len(completion.token_ids))
        if timeline.first_token is None:
            return
        self._ttft.observe(known(timeline.ttft))
        self._e2e.observe(known(timeline.e2e))
        self._inference.observe(known(timeline.last_token) - known(timeline.scheduled))
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

"""Prometheus metrics: vLLM's names under `minillm:`, with buckets in which a healthy queue can be seen.

What the engine counts is read when somebody scrapes, between two steps. What happened to requests is added
up when each is over, so a long stream appears at its end.
"""

from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from minillm.engine import Engine
from minillm.request import Completion
from minillm.serve.call import Call

SECONDS = tuple(base * scale for scale in (0.0001, 0.001, 0.01, 0.1, 1, 10) for base in (1, 2, 5)) + (100, 200, 500)
"""0.1 ms to 500 s. vLLM's buckets of the queue time begin at 300 ms: a queue of 1 ms and one of 200 look the same."""
TOKENS = tuple(2**power for power in range(18))

disable_created_metrics()  # a time of birth beside each counter: twice the lines, and nobody reads them


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment, and its steps since the last look."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV blocks that some request holds, 0 to 1."""
    prefix_queries: int
    prefix_hits: int
    num_preemptions: int
    step_tokens: tuple[int, ...]
    step_seconds: tuple[float, ...]
    num_steps: int

    @classmethod
    def of(cls, engine: Engine, since_step: int) -> "EngineStats":
        """Called in the engine thread."""
        scheduler = engine.scheduler
        steps = [step for step in engine.steps if step.step_id >= since_step]
        return cls(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_usage=scheduler.kv.pool.num_used / len(scheduler.kv.pool),
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            step_tokens=tuple(step.num_tokens for step in steps),
            step_seconds=tuple(step.end - step.start for step in steps),
            num_steps=scheduler.num_steps,
        )


class Metrics:
    """All metrics of one server. It observes calls; `/metrics` asks the engine and then renders."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._last: EngineStats | None = None
        ProcessCollector(registry=self.registry)

        self._running = self._gauge("num_requests_running", "Sequences in the engine's batch.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences waiting to be scheduled.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV blocks held by requests; 1 = all of them.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        self._preemptions = self._counter("num_preemptions", "Times that a request's KV blocks were taken away.")
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens computed in one step.", TOKENS)
        self._step_seconds = self._histogram("step_time_seconds", "One engine step.")

        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that are over.")
        self._output_tokens = self._counter("generation_tokens", "Output tokens of requests that are over.")
        self._success = self._counter("request_success", "Sequences answered, by reason.", "finished_reason")
        self._requests = self._counter("http_requests", "API requests, by outcome.", "path", "status", "outcome")
        self._degraded = self._counter("requests_degraded", "Answers made smaller on purpose.", "how")

        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token handed over.")
        self._itl = self._histogram("inter_token_latency_seconds", "Gaps between deliveries.")
        self._tpot = self._histogram("request_time_per_output_token_seconds", "(E2E - TTFT) / (n - 1) of a request.")
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last byte accepted.")
        self._inference = self._histogram("request_inference_time_seconds", "First scheduled to last token.")
        self._phases = {
            phase: self._histogram(f"request_{phase}_time_seconds", f"The {phase.replace('_', ' ')} phase.")
            for phase in ("queue", "prefill", "first_token", "decode", "stream")
        }
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_output = self._histogram("request_generation_tokens", "Output tokens of a sequence.", TOKENS)
        self._request_limit = self._histogram("request_params_max_tokens", "max_tokens of a request.", TOKENS)

    # ---------------------------------------------------------------- the engine, when somebody looks

    def question(self, engine: Engine) -> EngineStats:
        """To be asked in the engine thread; the answer goes to `render`."""
        return EngineStats.of(engine, self._last.num_steps if self._last else 0)

    def render(self, stats: EngineStats | None) -> bytes:
        """Prometheus text. None: the engine has stopped; its last numbers are shown."""
        if stats is not None:
            self._take(stats)
        return generate_latest(self.registry)

    def _take(self, stats: EngineStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_usage)
        last = self._last
        self._prefix_queries.inc(stats.prefix_queries - (last.prefix_queries if last else 0))
        self._prefix_hits.inc(stats.prefix_hits - (last.prefix_hits if last else 0))
        self._preemptions.inc(stats.num_preemptions - (last.num_preemptions if last else 0))
        for tokens in stats.step_tokens:
            self._step_tokens.observe(tokens)
        for seconds in stats.step_seconds:
            self._step_seconds.observe(seconds)
        self._last = stats

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
        self._success.labels(self.model_name, completion.finish_reason.value).inc()
        self._request_output.observe(len(completion.token_ids))
        if timeline.first_token is None:
            return
        self._ttft.observe(timeline.ttft)
        self._e2e.observe(timeline.e2e)
        self._inference.observe(timeline.last_token - timeline.scheduled)
        for phase, seconds in timeline.phases().items():
            self._phases[phase].observe(seconds)
        for gap in timeline.itl:
            self._itl.observe(gap)
        if timeline.tpot is not None:
            self._tpot.observe(timeline.tpot)

    # ---------------------------------------------------------------- making them

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"minillm:{name}", text, ["model_name"], registry=self.registry).labels(self.model_name)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        """With labels of its own, it still wants `labels(model, ...)`."""
        counter = Counter(f"minillm:{name}", text, ["model_name", *labels], registry=self.registry)
        return counter if labels else counter.labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        made = Histogram(f"minillm:{name}", text, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(self.model_name)

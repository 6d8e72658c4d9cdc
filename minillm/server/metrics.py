"""Prometheus metrics: vLLM's names under `minillm:`, with buckets in which a healthy queue can be seen.

What the engine does is counted in its own thread, and read there between two steps: totals are exact however often one
looks, and in one scrape all numbers of the engine fit together. What happened to requests is added up when each is
over, in the event loop, so a long stream appears at its end.
"""

from bisect import bisect_left
from collections import Counter as Counted
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

from minillm.core.step_log import FinishedStep
from minillm.core.timeline import PHASES
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.calls import Call, TokenCounts

SECONDS = tuple(base * scale for scale in (0.0001, 0.001, 0.01, 0.1, 1, 10) for base in (1, 2, 5)) + (100, 200, 500)
"""0.1 ms to 500 s. vLLM's buckets of the queue time begin at 300 ms: a queue of 1 ms and one of 200 look the same."""
TOKENS = tuple(2**power for power in range(18))
LABELS = ("model_name",)
POOL_LABELS = ("block_size", "num_gpu_blocks")
"""Labels of cache_config_info, as vLLM calls them: tokens in a block, and blocks (here also where there's no GPU)."""
MAX_TENANTS = 100
"""That have series of their own."""
MAX_TENANT_NAME = 200
"""Characters. A client makes up its own `user`, as long as a body may be, and each scrape would bring it twice."""

disable_created_metrics()  # a time of birth beside each counter: twice the lines, and no dashboard uses them


class Gaps:
    """The histogram of inter-token latency. One value a delivery, which with drafts can bring several tokens: so with
    them there are fewer values than tokens. The library's own histogram takes a lock for each, and a long
    answer's would hold up all streams when it ends."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._counts = [0] * (len(SECONDS) + 1)
        """Observations by bucket; the last is for what lies beyond all borders."""
        self._sum = 0.0

    def add(self, gaps: list[float]) -> None:
        for gap in gaps:
            self._counts[bisect_left(SECONDS, gap)] += 1
        self._sum += sum(gaps)

    def collect(self) -> Iterator[Metric]:
        """The family as Prometheus has it: each bucket counts what is at most its border."""
        text = "Gaps between deliveries."
        family = HistogramMetricFamily("minillm:inter_token_latency_seconds", text, labels=LABELS)
        borders = (*map(floatToGoString, SECONDS), "+Inf")
        family.add_metric([self._model_name], list(zip(borders, accumulate(self._counts))), self._sum)
        yield family


class EngineMetrics:
    """What an engine does. To be made and rendered in its thread, or once that has ended. A server keeps its engine."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._step_tokens = histogram(
            self._registry, model_name, "iteration_tokens_total", "Tokens computed in one step.", TOKENS
        )
        self._step_seconds = histogram(self._registry, model_name, "step_time_seconds", "One engine step.")
        self._num_drafts = self._num_draft_tokens = 0
        self._accepted_at: Counted[int] = Counted()
        """Draft tokens accepted, by their place in the draft."""
        engine.core.log.listeners.append(self._count_step)

    def _count_step(self, step: FinishedStep) -> None:
        self._step_tokens.observe(step.record.num_tokens)
        self._step_seconds.observe(step.record.end - step.record.start)
        for share in step.record.shares:
            if share.num_drafts:
                self._num_drafts += 1
                self._num_draft_tokens += share.num_drafts
                self._accepted_at.update(range(share.num_accepted))

    def collect(self) -> Iterator[Metric]:
        """What the engine itself counts; for the registry."""
        scheduler = self._engine.scheduler
        pool, trials = scheduler.kv.pool, self._engine.grammars.trials
        for kind, name, text, value in (
            (GaugeMetricFamily, "num_requests_running", "Sequences in the engine's batch.", len(scheduler.running)),
            (GaugeMetricFamily, "num_requests_waiting", "Sequences waiting to be scheduled.", len(scheduler.waiting)),
            (GaugeMetricFamily, "kv_cache_usage_perc", "KV blocks held; 1 = all of them.", pool.num_used / len(pool)),
            (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens looked up.", scheduler.prefix_queries),
            (CounterMetricFamily, "prefix_cache_hits", "Prompt tokens found there.", scheduler.prefix_hits),
            (CounterMetricFamily, "num_preemptions", "Times that blocks were taken away.", scheduler.num_preemptions),
            (CounterMetricFamily, "spec_decode_num_drafts", "Drafts checked.", self._num_drafts),
            (CounterMetricFamily, "spec_decode_num_draft_tokens", "Tokens in them.", self._num_draft_tokens),
            (CounterMetricFamily, "spec_decode_num_accepted_tokens", "Those accepted.", self._accepted_at.total()),
            (CounterMetricFamily, "grammar_worker_deaths", "Child processes ended by a grammar.", trials.num_deaths),
        ):
            family = kind(f"minillm:{name}", text, labels=LABELS)
            family.add_metric([self._model_name], value)
            yield family
        by_place = CounterMetricFamily(
            "minillm:spec_decode_num_accepted_tokens_per_pos", "By place in the draft.", labels=(*LABELS, "position")
        )
        for place, count in sorted(self._accepted_at.items()):
            by_place.add_metric([self._model_name, str(place)], count)
        yield by_place
        info = GaugeMetricFamily("minillm:cache_config_info", "The KV pool; always 1.", labels=(*LABELS, *POOL_LABELS))
        info.add_metric([self._model_name, str(scheduler.kv.block_size), str(len(pool))], 1)
        yield info

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)


class Metrics:
    """What became of requests. It observes calls, in the event loop."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"minillm:{name}", text, (*LABELS, *labels), registry=registry)

        def measure(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return histogram(registry, model_name, name, text, buckets)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that are over.").labels(model_name)
        self._output_tokens = counter("generation_tokens", "Output tokens of those.").labels(model_name)
        self._success = counter("request_success", "Sequences answered, by reason.", "finished_reason")
        self._requests = counter("http_requests", "API requests, by outcome.", "path", "status", "outcome")
        self._tenant_tokens = counter("tenant_tokens", "Tokens served by tenant.", "tenant", "kind")
        self._tenants: set[str] = set()
        self._degraded = counter("requests_degraded", "Answers made smaller on purpose.", "how")

        self._ttft = measure("time_to_first_token_seconds", "Arrival to first token handed over.")
        self._itl = Gaps(model_name)
        registry.register(self._itl)
        self._tpot = measure("request_time_per_output_token_seconds", "(E2E - TTFT) / (n - 1) of a request.")
        self._e2e = measure("e2e_request_latency_seconds", "Arrival to last byte accepted.")
        self._inference = measure("request_inference_time_seconds", "First scheduled to last token.")
        self._phases = {
            phase: measure(f"request_{phase}_time_seconds", f"The {phase.replace('_', ' ')} phase.") for phase in PHASES
        }
        self._request_prompt = measure("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_output = measure("request_generation_tokens", "Output tokens of a sequence.", TOKENS)
        self._request_longest = measure("request_max_num_generation_tokens", "Of a request's longest answer.", TOKENS)
        self._request_limit = measure("request_params_max_tokens", "max_tokens of a request.", TOKENS)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)

    def observe(self, call: Call) -> None:
        self._requests.labels(self.model_name, call.path, str(call.status or "none"), call.outcome).inc()
        if call.degraded is not None:
            self._degraded.labels(self.model_name, call.degraded).inc()
        outputs = [output for output in call.outputs if output.is_prefilled]
        tokens = TokenCounts.of(outputs)
        self._prompt_tokens.inc(tokens.prompt)
        self._output_tokens.inc(tokens.output)
        if call.outcome == "ok":
            self._observe_answered(call, outputs)
        if call.tenant and outputs:
            self._observe_tenant(call.tenant, tokens)

    def _observe_tenant(self, tenant: str, tokens: TokenCounts) -> None:
        """A series stays for good, and names come from clients: after the first of them the others share one."""
        if len(self._tenants) < MAX_TENANTS and len(tenant) <= MAX_TENANT_NAME:
            self._tenants.add(tenant)
        name = tenant if tenant in self._tenants else "other"
        self._tenant_tokens.labels(self.model_name, name, "prompt").inc(tokens.prompt)
        self._tenant_tokens.labels(self.model_name, name, "generation").inc(tokens.output)

    def _observe_answered(self, call: Call, outputs: list[RequestOutput]) -> None:
        """Histograms of requests count those that were answered, as in vLLM: their counts agree with each other."""
        if call.max_tokens is not None:
            self._request_limit.observe(call.max_tokens)
        for output in outputs:
            self._request_prompt.observe(len(output.prompt_token_ids))
            self._request_longest.observe(max(len(completion.token_ids) for completion in output.completions))
            for completion in output.completions:
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
        self._itl.add(timeline.itl)
        if timeline.tpot is not None:
            self._tpot.observe(timeline.tpot)


def histogram(
    registry: CollectorRegistry, model_name: str, name: str, text: str, buckets: tuple[float, ...] = SECONDS
) -> Histogram:
    """One series of it, for the model that is served."""
    return Histogram(f"minillm:{name}", text, LABELS, buckets=buckets, registry=registry).labels(model_name)

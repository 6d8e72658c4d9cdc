"""OpenTelemetry: a span for each request and one for each of its phases, and the GenAI server metrics.

Names are those of the GenAI semantic conventions (opentelemetry.io/docs/specs/semconv/gen-ai). Spans are
made when a request is over, from its timeline, so tracing costs a token nothing. Prompts and answers are
not recorded.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from minillm.core.errors import MissingPackageError
from minillm.core.timeline import PHASES, Clock, Timeline
from minillm.server.calls import Call, TokenCounts

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

PROVIDER = "minillm"
DURATION_BUCKETS = tuple(0.01 * 2**power for power in range(14))
FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Buckets that the conventions ask for, seconds."""

REQUESTED = {
    "temperature": None, "top_p": None, "stream": None, "top_k": 0, "n": 1, "seed": None, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""Fields of a request that a span tells, but for those that ask for nothing: their values here."""


class Tracing:
    """Observes calls.

    Args:
        tracers, meters: where spans and metrics go.
        clock: the engine's; its stamps are converted to Unix time.
        server: (address, port) for `server.address` and `server.port`.
    """

    def __init__(
        self,
        tracers: "TracerProvider",
        meters: "MeterProvider",
        model_name: str,
        clock: Clock,
        server: tuple[str, int],
    ) -> None:
        self._tracer = tracers.get_tracer("minillm.server")
        self._model = model_name
        self._clock = clock
        self._server: dict[str, Any] = {"server.address": server[0], "server.port": server[1]}
        meter = meters.get_meter("minillm.server")

        def histogram(name: str, buckets: tuple[float, ...]) -> Any:
            return meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=list(buckets))

        self._duration = histogram("gen_ai.server.request.duration", DURATION_BUCKETS)
        self._first_token = histogram("gen_ai.server.time_to_first_token", FIRST_TOKEN_BUCKETS)
        self._per_token = histogram("gen_ai.server.time_per_output_token", PER_TOKEN_BUCKETS)

    def observe(self, call: Call) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        common = self._common(call)
        span = self._tracer.start_span(
            f"{common['gen_ai.operation.name']} {self._model}",
            context=TraceContextTextMapPropagator().extract(call.trace_parent),
            kind=trace.SpanKind.SERVER,
            start_time=self._unix_ns(call, call.arrival),
            attributes={**common, **self._server, **dict(request_attributes(call)), **response_attributes(call)},
        )
        inside = trace.set_span_in_context(span)
        if call.outcome != "ok":
            span.set_attribute("error.type", call.outcome)
            span.set_status(trace.StatusCode.ERROR, call.outcome)
        for index, completion in enumerate(call.completions):
            if completion.timeline.finished is not None:
                self._phase_spans(call, index, completion.timeline, inside)
        span.end(self._unix_ns(call, call.arrival + call.e2e_s))
        self._record(call, common)

    def _phase_spans(self, call: Call, index: int, timeline: Timeline, inside: Any) -> None:
        borders = timeline.borders()
        for i, phase in enumerate(PHASES):
            start, end = borders[i], borders[i + 1]
            span = self._tracer.start_span(
                phase,
                context=inside,
                start_time=self._unix_ns(call, start),
                attributes={"minillm.phase": phase, "minillm.choice.index": index},
            )
            span.end(self._unix_ns(call, end))

    def _record(self, call: Call, common: dict[str, str]) -> None:
        labels = common if call.outcome == "ok" else {**common, "error.type": call.outcome}
        self._duration.record(call.e2e_s, labels)
        if call.outcome != "ok":
            return
        for completion in call.completions:
            if completion.timeline.ttft is not None:
                self._first_token.record(completion.timeline.ttft, common)
            if completion.timeline.tpot is not None:
                self._per_token.record(completion.timeline.tpot, common)

    def _common(self, call: Call) -> dict[str, str]:
        return {
            "gen_ai.operation.name": "chat" if call.is_chat else "text_completion",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }

    def _unix_ns(self, call: Call, moment: float) -> int:
        return int(1e9 * (call.unix_time + moment - call.arrival))


def request_attributes(call: Call) -> Iterator[tuple[str, Any]]:
    """What was asked for, as far as it is known and was asked for."""
    if call.body is None:
        return
    asked = call.body.model_dump(include=set(REQUESTED))
    for name, neutral in REQUESTED.items():
        if asked[name] != neutral:
            yield f"gen_ai.request.{'choice.count' if name == 'n' else name}", asked[name]
    if call.max_tokens is not None:
        yield "gen_ai.request.max_tokens", call.max_tokens


def response_attributes(call: Call) -> dict[str, Any]:
    """What a span says about the answer, by the GenAI conventions."""
    if not call.outputs:
        return {}
    tokens = TokenCounts.of(call.outputs)
    reasons = [c.finish_reason.value for c in call.completions if c.finish_reason is not None]
    return {
        "gen_ai.response.id": call.request_id,
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_read.input_tokens": tokens.cached,
    }


def to_collector(endpoint: str, model_name: str, clock: Clock, server: tuple[str, int]) -> Tracing:
    """Send to an OpenTelemetry collector, by OTLP over HTTP, from threads of its own.

    Raises:
        MissingPackageError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingPackageError(
            f'--otlp-endpoint needs OpenTelemetry: pip install -c constraints.txt -e ".[otel]" ({error})'
        ) from error
    base = endpoint.rstrip("/")
    resource = Resource.create({"service.name": "minillm"})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics"))
    return Tracing(tracers, MeterProvider(resource=resource, metric_readers=[reader]), model_name, clock, server)

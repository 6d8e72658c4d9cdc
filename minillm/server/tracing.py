"""OpenTelemetry: a span for each request, and one for each of its phases.

Names are those of the GenAI semantic conventions (github.com/open-telemetry/semantic-conventions-genai, client
inference), of which none is stable yet; the kind of span is SERVER, since this is the server's end. Spans are
made when a request is over, from its timeline, so tracing costs a token nothing. Prompts and answers are
not recorded. For metrics, have the collector scrape `/metrics`.
"""

from typing import TYPE_CHECKING, Any

from minillm.core.timeline import PHASES, Timeline
from minillm.host.errors import MissingPackageError
from minillm.server.calls import Call, TokenCounts

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

REQUESTED = ("temperature", "top_p", "stream", "top_k", "seed", "presence_penalty", "frequency_penalty")
"""Fields of a request that a span tells, if the client sent them."""


class Tracing:
    """Observes calls.

    Args:
        tracers: where spans go.
        server: (address, port) for `server.address` and `server.port`.
    """

    def __init__(self, tracers: "TracerProvider", model_name: str, server: tuple[str, int]) -> None:
        self._tracer = tracers.get_tracer("minillm.server")
        self._model = model_name
        self._server: dict[str, Any] = {"server.address": server[0], "server.port": server[1]}

    def observe(self, call: Call) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        operation = "chat" if call.is_chat else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=TraceContextTextMapPropagator().extract(call.trace_parent),
            kind=trace.SpanKind.SERVER,
            start_time=_unix_ns(call, call.arrival),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "minillm",
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                **self._server,
                **attributes_of(call),
            },
        )
        inside = trace.set_span_in_context(span)
        if call.outcome != "ok":
            span.set_attribute("error.type", call.outcome)
            span.set_status(trace.StatusCode.ERROR, call.outcome)
        for index, completion in enumerate(call.completions):
            if completion.timeline.finished is not None:
                self._phase_spans(call, index, completion.timeline, inside)
        span.end(_unix_ns(call, call.arrival + call.e2e_s))

    def _phase_spans(self, call: Call, index: int, timeline: Timeline, inside: Any) -> None:
        borders = [_unix_ns(call, border) for border in timeline.borders()]
        for phase, start, end in zip(PHASES, borders, borders[1:]):
            told: dict[str, Any] = {"minillm.phase": phase, "minillm.choice.index": index}
            self._tracer.start_span(phase, context=inside, start_time=start, attributes=told).end(end)


def _unix_ns(call: Call, moment: float) -> int:
    return int(1e9 * (call.unix_time + moment - call.arrival))


def attributes_of(call: Call) -> dict[str, Any]:
    """What was asked for, and what came of it, as far as it is known."""
    attributes: dict[str, Any] = {}
    if call.body is not None:
        asked = call.body.model_dump(include=set(REQUESTED), exclude_unset=True)
        attributes = {f"gen_ai.request.{name}": value for name, value in asked.items()}
        if call.body.n != 1:
            attributes["gen_ai.request.choice.count"] = call.body.n
        if stop := call.body.stop:
            attributes["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if form := call.body.response_format:
            attributes["gen_ai.output.type"] = "text" if form.type == "text" else "json"
    if call.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = call.max_tokens
    if call.outputs:
        tokens = TokenCounts.of(call.outputs)
        attributes |= {
            "gen_ai.response.id": call.request_id,
            "gen_ai.response.finish_reasons": [c.finish_reason.value for c in call.completions if c.finish_reason],
            "gen_ai.usage.input_tokens": tokens.prompt,
            "gen_ai.usage.output_tokens": tokens.output,
            "gen_ai.usage.cache_read.input_tokens": tokens.cached,
        }
        if call.body is not None and call.body.stream and (ttft := call.outputs[0].timeline.ttft) is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = ttft
    return attributes


def to_collector(endpoint: str, model_name: str, server: tuple[str, int]) -> Tracing:
    """Send to an OpenTelemetry collector, by OTLP over HTTP, from a thread of its own.

    Raises:
        MissingPackageError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingPackageError(
            f'--otlp-endpoint needs OpenTelemetry: pip install -c constraints.txt -e ".[otel]" ({error})'
        ) from error
    tracers = TracerProvider(resource=Resource.create({"service.name": "minillm"}))
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    return Tracing(tracers, model_name, server)

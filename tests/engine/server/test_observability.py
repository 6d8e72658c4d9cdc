"""Metrics, the access log, and spans."""

import itertools
import json
import logging
import sys
import threading
from collections.abc import Callable

import openai
import pytest
from fake_runner import FakeRunner
from patience import PATIENCE_S, wait_for
from server.running import CHAT, GREEDY, LONG, MODEL, Serve

from minillm.core.params import SamplingParams
from minillm.core.timeline import PHASES, VirtualClock
from minillm.frontend.engine import Engine
from minillm.observe.speculation import SpeculationSummary
from minillm.policies.config import EngineConfig
from minillm.server import access_log
from minillm.server.metrics import EngineMetrics


def read(text: str, name: str) -> float:
    """The one series of a metric."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"minillm:{name}{{")]
    return float(line.rpartition(" ")[2])


def test_gauges_show_what_is_in_flight_and_return_to_zero(serve: Serve):
    server = serve(engine={"max_num_seqs": 1, "enable_prefix_caching": False})
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [server.metric(name) for name in gauges] == [0, 0, 0]
    client = server.client()
    streams = [client.chat.completions.create(model=MODEL, messages=CHAT, **LONG, stream=True)]
    next(streams[0])
    asked = {"model": MODEL, "messages": CHAT, "max_tokens": 9}
    body = json.dumps(asked).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with server.connect() as second:
        second.sendall(head + body)
        server.wait_until(lambda engine: len(engine.scheduler.waiting) == 1)  # behind the first; then it leaves
        assert server.metric("num_requests_running") == 1 and server.metric("kv_cache_usage_perc") > 0
        assert server.metric("num_requests_waiting") == 1
    streams[0].close()
    server.wait_until_idle()
    assert [server.metric(name) for name in gauges] == [0, 0, 0]
    wait_for(lambda: server.metric("http_requests_total", outcome="disconnected") == 2, "both have left")
    assert server.metric("prompt_tokens_total") > 0, "the first one's was computed"
    for name in ("prompt_tokens", "generation_tokens", "max_num_generation_tokens", "params_max_tokens"):
        assert server.metric(f"request_{name}_count") == 0, "as in vLLM, which counts what it has answered"


def test_counters_and_histograms_add_up(serve: Serve):
    server = serve()
    client = server.client()
    for _ in range(3):
        client.chat.completions.create(model=MODEL, messages=CHAT, **GREEDY)
    list(client.chat.completions.create(model=MODEL, messages=CHAT, **GREEDY, n=2, stream=True))
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=CHAT, temperature=9)
    prompt_tokens = client.chat.completions.create(model=MODEL, messages=CHAT, **GREEDY).usage.prompt_tokens
    assert server.metric("request_success_total", finished_reason="length") == 6
    assert server.metric("generation_tokens_total") == 6 * 12
    assert server.metric("prompt_tokens_total") == 5 * prompt_tokens
    assert server.metric("inter_token_latency_seconds_count") == 6 * 11
    assert server.metric("http_requests_total", status="400", outcome="invalid_value") == 1
    for phase in PHASES:
        assert server.metric(f"request_{phase}_time_seconds_count") == 6
    total = sum(server.metric(f"request_{phase}_time_seconds_sum") for phase in PHASES)
    assert total == pytest.approx(server.metric("e2e_request_latency_seconds_sum"))
    computed = server.metric("iteration_tokens_total_sum")
    assert server.metric("iteration_tokens_total_count") == server.metric("step_time_seconds_count") > 0
    assert computed == server.metric("iteration_tokens_total_sum"), "a step is counted once, however often one looks"


@pytest.mark.parametrize(("ahead", "every"), [(False, 20_000), (True, 70)], ids=["in turn, once", "ahead, often"])
def test_steps_are_counted_once_however_often_they_are_scraped(ahead: bool, every: int):
    clock = VirtualClock()
    config = EngineConfig(max_model_len=64, max_num_seqs=1, enable_prefix_caching=False, async_scheduling=ahead)
    engine = Engine.on_runner(config, FakeRunner(8, 16, clock), clock)
    metrics, taken = EngineMetrics(engine, MODEL), 0
    for _ in range(200):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=50), stream=False)
    while engine.has_unfinished:
        engine.step()
        taken += 1
        if taken % every == 0:
            metrics.render()
    text = metrics.render().decode()
    assert read(text, "iteration_tokens_total_count") == read(text, "step_time_seconds_count") == 10_000
    assert read(text, "iteration_tokens_total_sum") == 200 * (3 + 49)


def test_drafts_are_counted_as_in_vllm(serve: Serve):
    server = serve(engine={"speculative": {"method": "ngram", "k": 3}})
    for prompt in ("a b a b a b a b", "one two one two one"):
        server.client().completions.create(model=MODEL, prompt=prompt, **{**GREEDY, "max_tokens": 40})
    told = server.engine(lambda engine: SpeculationSummary.of_steps(engine.steps))
    names = ("drafts", "draft_tokens", "accepted_tokens")
    counted = [server.metric(f"spec_decode_num_{name}_total") for name in names]
    assert counted == [told.num_verifications, sum(told.drafted_at), sum(told.accepted_at)] and all(counted)
    shown = [server.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(3)]
    assert shown == told.accepted_at


def test_the_access_log_says_everything_but_what_was_said(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server = serve(access_log=True)
    for name, value in (("handlers", [caplog.handler]), ("level", logging.INFO), ("propagate", False)):
        monkeypatch.setattr(access_log.logger, name, value)
    secret = "xyzzy plugh"
    answer = server.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": secret}], extra_headers={"x-request-id": "7/b"}, **GREEDY
    )
    with pytest.raises(openai.BadRequestError):
        server.client().chat.completions.create(model=MODEL, messages=[{"role": secret, "content": secret}])
    server.stop(), server.join()
    lines = [message for name, _, message in caplog.record_tuples if name == access_log.logger.name]
    served, refused = map(json.loads, lines)
    assert served["client_request_id"] == "7/b" and "client_request_id" not in refused
    assert served["request_id"] == answer.id and served["outcome"] == "ok" and served["output_tokens"] == 12
    assert sum(served["phases_ms"].values()) == pytest.approx(served["e2e_ms"], abs=1)
    assert refused["status"] == 400 and refused["outcome"] == "invalid_value"
    said = "".join(lines)
    assert "xyzzy" not in said and answer.choices[0].message.content not in said


def test_a_log_that_is_not_read_delays_no_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access_log, "MAX_LINES", 3)
    for name in ("handlers", "level", "propagate"):  # put back afterwards
        monkeypatch.setattr(access_log.logger, name, getattr(access_log.logger, name))
    stopping: list[Callable[[], None]] = []
    monkeypatch.setattr(access_log.atexit, "register", stopping.append)
    pipe_is_full, taken, written = threading.Event(), threading.Event(), []

    class FullPipe:
        def write(self, text: str) -> None:
            taken.set()
            assert pipe_is_full.wait(PATIENCE_S)
            written.append(text.strip())

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stderr", FullPipe())
    access_log.log_to_stderr()
    access_log.logger.info("0")
    assert taken.wait(PATIENCE_S)
    for i in range(1, 10):
        access_log.logger.info("%d", i)  # returns, whatever the pipe does
    pipe_is_full.set()
    wait_for(lambda: not access_log.logger.handlers[0].queue.qsize(), "all lines are written")
    access_log.logger.info("last")
    stopping[0]()
    assert [line for line in written if line] == ["0", "1", "2", "3", '{"lost_lines": 6}', "last"]


def test_one_span_a_phase_by_the_genai_conventions(serve: Serve):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.trace import SpanKind

    from minillm.server.tracing import Tracing

    server = serve()
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    server.service.observers = (Tracing(tracers, MODEL, ("127.0.0.1", 1)).observe,)
    calls = server.watched()
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    more = {"stop": "never", "response_format": {"type": "text"}, "extra_headers": headers}
    stream = server.client().chat.completions.create(model=MODEL, messages=CHAT, **GREEDY, **more, stream=True)
    answer, *_ = stream
    wait_for(lambda: calls, "it is over, a moment after its last event was read")
    with pytest.raises(openai.BadRequestError):
        server.client().chat.completions.create(model=MODEL, messages=[])
    server.stop(), server.join()

    *phases, root, failed = spans.get_finished_spans()
    assert root.name == failed.name == f"chat {MODEL}" and format(root.context.trace_id, "032x") == trace_id
    known = {name for name in vars(gen_ai_attributes).values() if isinstance(name, str)}
    told = {name for name in (*root.attributes, *failed.attributes) if name.startswith("gen_ai.")}
    assert told <= known and root.kind is SpanKind.SERVER, told - known
    assert {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.output.type"} <= told
    assert root.attributes["gen_ai.request.stop_sequences"] == ("never",)
    assert root.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert root.attributes["gen_ai.usage.output_tokens"] == 12 and root.attributes["gen_ai.response.id"] == answer.id
    assert failed.attributes["error.type"] == "invalid_value" and not failed.status.is_ok
    assert [span.name for span in phases] == list(PHASES)
    assert {span.parent.span_id for span in phases} == {root.context.span_id}
    assert all(a.end_time == b.start_time for a, b in itertools.pairwise(phases)), "phases tile the request"
    for span, seconds in zip(phases, calls[0].outputs[0].timeline.phases().values()):
        assert span.end_time - span.start_time == pytest.approx(1e9 * seconds, abs=1e4)

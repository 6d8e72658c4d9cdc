"""What a real scheduler leaves behind, under preemption, timeouts and aborts, is summed up and drawn."""

import pytest
from fake_runner import FakeRunner
from observe.test_trace import assert_slices_nest, phases_of, slices_by_track

from course.summary import SLO, summarize
from minillm.core.params import SamplingParams
from minillm.core.timeline import PHASES, VirtualClock
from minillm.frontend.engine import Engine
from minillm.observe.records import as_records
from minillm.observe.trace import chrome_trace
from minillm.policies.config import EngineConfig


@pytest.fixture(scope="module", params=["recompute", "swap"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """A crowded run: 12 prompts, 3 slots, a KV pool too small for them, a queue timeout, one abort."""
    clock = VirtualClock()
    config = EngineConfig(
        max_num_seqs=3,
        max_num_batched_tokens=16,
        max_model_len=128,
        block_size=4,
        queue_timeout_s=1.0,
        preemption=request.param,
        enable_prefix_caching=False,  # it would find the preempted tokens again: nothing to recompute
    )
    num_host_blocks = 20 if request.param == "swap" else 0
    engine = Engine.on_runner(config, FakeRunner(20, 4, clock, num_host_blocks), clock)
    for i in range(12):
        prompt = [(7 * i + j) % 1000 for j in range(5 + 3 * i)]
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=20), request_id=f"r{i}")
    for _ in range(8):
        engine.step()
    engine.abort("r1")
    while engine.has_unfinished:
        engine.step()
    return engine


def test_the_run_has_every_kind_of_trouble(engine):
    summary = summarize(engine.recent_requests)
    assert set(summary.counts) == {"length", "timeout", "abort"}
    assert engine.scheduler.num_preemptions > 0
    assert summary.lost["preempted"] > 0


def test_summary_agrees_with_the_timelines(engine):
    records = as_records(engine.recent_requests)
    summary = summarize(engine.recent_requests, SLO(e2e=1e9))
    done = [record.timeline for record in records if record.completed]
    assert summary.metrics["e2e"].mean == pytest.approx(sum(t.e2e for t in done) / len(done))
    for phase in PHASES:
        assert summary.phases[phase].mean == pytest.approx(sum(t.phases()[phase] for t in done) / len(done))
    assert summary.goodput == pytest.approx(summary.requests_per_s)
    assert summary.attainment == pytest.approx(len(done) / len(records))


def test_trace_nests_and_covers_every_request(engine):
    events = chrome_trace(engine.recent_requests, engine.steps)["traceEvents"]
    assert_slices_nest(events)
    names = {event["name"] for track in slices_by_track(events).values() for event in track}
    assert {*PHASES, "chunk", "step", "forward"} <= names
    if engine.config.preemption == "recompute":
        assert "recompute" in names
    assert any(event["ph"] == "i" and event["name"] == "preempted" for event in events)
    for record in as_records(engine.recent_requests):
        total = sum(event["dur"] for event in phases_of(events, record.request_id))
        assert total == pytest.approx(record.timeline.e2e * 1e6)

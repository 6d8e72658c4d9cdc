"""An engine that is looked at while it runs: every look is whole, and what ended is looked at once."""

from collections.abc import Iterator

import pytest
from fake_runner import FakeRunner
from patience import PATIENCE_S

from course.lab.snapshot import SHARED, RequestView, take_snapshot
from course.lab.watched_engine import WatchedEngine
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig

ENDLESS = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture
def thread(config: EngineConfig, model: LoadedModel) -> Iterator[WatchedEngine]:
    with WatchedEngine(config, model) as thread:
        yield thread


def test_snapshots_show_requests_blocks_and_steps(thread: WatchedEngine) -> None:
    shared = "The same long beginning for everybody, so that some blocks are shared by all of them. " * 2
    streams = [thread.submit(shared + str(i), ENDLESS) for i in range(3)]
    for stream in streams:
        next(iter(stream))
    snapshot = thread.snapshot()
    for _ in range(200):
        snapshot = thread.snapshot()
        if SHARED in snapshot.block_owners and all(view.num_output_tokens > 2 for view in snapshot.requests):
            break
        next(iter(streams[0]))
    assert [view.arrival_index for view in snapshot.requests] == [0, 1, 2]
    assert {view.phase for view in snapshot.requests} == {"decode"}
    assert SHARED in snapshot.block_owners and {0, 1, 2} <= set(snapshot.block_owners)
    assert snapshot.prefix_hits > 0 and snapshot.num_steps >= len(snapshot.steps) > 0
    for view in snapshot.requests:
        assert list(view.borders) == sorted(view.borders) and view.borders[-1] == snapshot.now


def test_the_memo_of_finished_requests_is_bounded_by_the_history(
    config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minillm.core.engine.REQUEST_HISTORY", 3)
    with WatchedEngine(config, model) as thread:
        for _ in range(8):
            thread.submit("Hello there", SamplingParams(max_tokens=1)).result(timeout=PATIENCE_S)
            thread.abort_all()
    assert [view.arrival_index for view in thread.snapshot().requests] == [5, 6, 7]
    assert {request.arrival_index for request in thread._views} == {5, 6, 7}


def test_a_snapshot_shows_a_last_byte_that_was_taken_late() -> None:
    clock = VirtualClock()
    engine = Engine.on_runner(EngineConfig(max_model_len=64), FakeRunner(20, 4, clock), clock)
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2))
    while engine.has_unfinished:
        engine.step()
    memo: dict[Request, RequestView] = {}
    [early] = take_snapshot(engine, memo).requests
    [request] = engine.recent_requests
    request.timeline.accept(early.borders[-1] + 3.0)  # a slow client
    [late] = take_snapshot(engine, memo).requests
    assert late.borders[-1] - late.borders[-2] == early.borders[-1] - early.borders[-2] + 3.0
    assert take_snapshot(engine, memo).requests[0] is late, "what cannot change is not looked at again"

"""The Chrome trace obeys the Trace Event Format, and says what the stamps say."""

import itertools
import json
from collections import defaultdict

import pytest
from observe.runs import timeline

from minillm.core.request import FinishReason
from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import PHASES
from minillm.observe.records import RequestRecord
from minillm.observe.trace import ENGINE, REQUESTS, chrome_trace, write_chrome_trace

TOLERANCE = 1e-6  # microseconds: a thousandth of the nanosecond that times are rounded to


def slices_by_track(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def track_of(events: list[dict], request_id: str) -> int:
    [tid] = [e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith(f"{request_id} (")]
    return tid


def phases_of(events: list[dict], request_id: str) -> list[dict]:
    slices = slices_by_track(events)[REQUESTS, track_of(events, request_id)]
    return [event for event in slices if event.get("cat") == "phase"]


def assert_slices_nest(events: list[dict]) -> None:
    for track in slices_by_track(events).values():
        open_ends: list[float] = []
        for event in track:
            while open_ends and open_ends[-1] <= event["ts"] + TOLERANCE:
                open_ends.pop()
            end = event["ts"] + event["dur"]
            assert not open_ends or end <= open_ends[-1] + TOLERANCE, f"{event['name']} sticks out of its parent"
            open_ends.append(end)


@pytest.fixture
def events(records, steps) -> list[dict]:
    return chrome_trace(records, steps)["traceEvents"]


def test_requests_are_rows_in_order_of_arrival(records, events):
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == REQUESTS}
    orders = {
        e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index" and e["pid"] == REQUESTS
    }
    rows = [names[tid] for tid in sorted(names, key=orders.get)]
    assert [row.split(" (")[0] for row in rows] == [record.request_id for record in records]
    assert rows[0] == "whole (100 in, 4 out)"
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {REQUESTS: "requests", ENGINE: "engine"}


def test_phases_tile_the_request_in_microseconds(records, events):
    phases = phases_of(events, "whole")
    assert [event["name"] for event in phases] == list(PHASES)
    assert [event["ts"] for event in phases] == pytest.approx([0, 1e6, 3e6, 3.5e6, 4.75e6])
    assert [event["dur"] for event in phases] == pytest.approx([1e6, 2e6, 0.5e6, 1.25e6, 0.125e6])


@pytest.mark.parametrize(
    ("request_id", "last_phase", "end"),
    [
        ("in-decode", "stream", 4.5e6),
        ("in-prefill", "prefill", 4.5e6),
        ("in-queue", "queue", 4e6),
        ("decoding", "decode", 5.75e6),
        ("waiting", "queue", 5.75e6),
    ],
)
def test_phases_never_reached_are_left_out(events, request_id, last_phase, end):
    """Requests in flight are cut off at the latest stamp there is, 5.75 s."""
    phases = phases_of(events, request_id)
    assert [event["name"] for event in phases] == list(PHASES[: PHASES.index(last_phase) + 1])
    assert phases[-1]["ts"] + phases[-1]["dur"] == pytest.approx(end)


def test_chunks_lie_in_their_phase(events):
    track = slices_by_track(events)[REQUESTS, track_of(events, "whole")]
    chunks = [(e["name"], e["ts"], e["dur"], e["args"]["tokens"]) for e in track if e.get("cat") == "chunk"]
    assert chunks == [
        ("chunk", 1e6, 1e6, 60),
        ("chunk", 2e6, 1e6, 8),  # its step lasts to 3.5 s, prefill to 3 s
        ("recompute", 4e6, 0.75e6, 70),  # its step lasts to 5 s, decode to 4.75 s
    ]
    [preempted] = [event for event in events if event["ph"] == "i"]
    assert (preempted["name"], preempted["ts"], preempted["tid"]) == ("preempted", 3.5e6, track_of(events, "whole"))


def test_the_engine_track_has_steps_and_their_stages(steps, events):
    track = slices_by_track(events)[ENGINE, 1]
    assert [event["args"]["step"] for event in track if event["name"] == "step"] == [0, 1, 2, 3]
    first = [(event["name"], event["ts"]) for event in track if event["ts"] < 2e6]
    expected = [("step", 1e6), ("schedule", 1e6), ("build", 1.001e6), ("forward", 1.003e6), ("sample", 1.503e6)]
    assert [name for name, _ in first] == [*(name for name, _ in expected), "detokenize"]
    assert [ts for _, ts in first[:5]] == pytest.approx([ts for _, ts in expected])


def test_the_file_is_plain_json(tmp_path, records, steps):
    path = tmp_path / "trace.json"
    write_chrome_trace(path, records, steps)

    def no_nan(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(path.read_text(), parse_constant=no_nan) == chrome_trace(records, steps)


def test_times_far_from_zero_keep_their_nanoseconds():
    """A clock's origin is arbitrary: the trace starts at 0, and borders still meet exactly."""
    record = RequestRecord("r", 1, 0, None, timeline(98_765_432.1, 1e-6, 2e-6, 1e-6, 3e-6, 1e-6))
    phases = phases_of(chrome_trace([record])["traceEvents"], "r")
    for before, after in itertools.pairwise(phases):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=TOLERANCE)


def test_an_id_that_was_used_again_has_a_track_for_each_request():
    """Ids are unique among requests in flight only."""
    first, second = (
        RequestRecord("again", size, 0, FinishReason.STOP, timeline(arrival, 1.0, 1.0, 0.5, 0.5, 0.5))
        for size, arrival in ((10, 0.0), (20, 10.0))
    )
    chunks = [
        StepRecord(i, start, start + 0.5, (StepShare("again", 7 + i, True),), 0, 1, 1, 8, ("again",), {})
        for i, start in enumerate((1.0, 11.0))
    ]
    events = chrome_trace([first, second], chunks)["traceEvents"]
    by_track = slices_by_track(events)
    for row, (tid, start) in enumerate(((1, 0.0), (2, 10e6))):
        assert by_track[REQUESTS, tid][0]["ts"] == start
        [chunk] = [e for e in by_track[REQUESTS, tid] if e.get("cat") == "chunk"]
        assert (chunk["ts"], chunk["dur"], chunk["args"]["tokens"]) == (start + 1e6, 0.5e6, 7 + row)
    assert [(e["tid"], e["ts"]) for e in events if e["ph"] == "i"] == [(1, 1e6), (2, 11e6)]

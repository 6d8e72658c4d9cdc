"""Tables have a row per request and per step; JSON Lines read back exactly as written."""

import json
import math

import pandas as pd
import pytest

from minillm.core.errors import RecordingError
from minillm.core.request import FinishReason
from minillm.core.timeline import PHASES, Timeline, Verification
from minillm.observe.export import read_jsonl, requests_frame, steps_frame, write_jsonl
from minillm.observe.records import RequestRecord


def test_requests_frame(records):
    records[0].timeline.add_lost("preempted", 0.5)
    frame = requests_frame(reversed(records)).set_index("request_id")
    assert list(frame.index) == [record.request_id for record in records], "in order of arrival"
    assert frame.loc["whole", "e2e"] == pytest.approx(4.875)
    assert frame.loc["whole", "max_itl"] == pytest.approx(0.75)
    assert frame.loc["whole", [f"phase_{phase}" for phase in PHASES]].sum() == pytest.approx(4.875)
    assert frame["lost_preempted"].to_list() == [0.5, 0, 0, 0, 0, 0, 0]
    assert frame.loc["in-queue", "finish_reason"] == "timeout"
    assert pd.isna(frame.loc["in-queue", "scheduled"])
    assert frame.loc["in-queue", "phase_queue"] == pytest.approx(1.0)
    assert pd.isna(frame.loc["decoding", "phase_queue"]), "in flight: not known yet"


def test_steps_frame(steps):
    frame = steps_frame(steps)
    assert frame["num_tokens"].to_list() == [61, 9, 2, 71]
    assert frame["num_prefill_tokens"].to_list() == [60, 8, 0, 70]
    assert frame["num_preempted"].to_list() == [0, 0, 1, 0]
    assert frame["stage_forward"].to_list() == pytest.approx([0.5, 0.75, 0.125, 0.5])


def test_empty_frames():
    assert len(requests_frame([])) == len(steps_frame([])) == 0


def test_jsonl_round_trip_is_exact(tmp_path, records, steps):
    timeline = Timeline(0.1 + 0.2, 1 / 3, math.pi, lost={"a b": 1e-17}, verifications=[Verification(4, 2, 0.1, 0.3)])
    odd = RequestRecord("ünïcode\n✓", 1, 0, FinishReason.STOP, timeline)
    path = tmp_path / "run.jsonl"
    write_jsonl(path, [*records, odd], steps)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    recording = read_jsonl(path)
    assert recording.requests == sorted([*records, odd], key=lambda record: record.timeline.arrival)
    assert recording.steps == steps
    assert recording.requests[0].finish_reason is FinishReason.STOP
    assert isinstance(recording.steps[0].shares, tuple)
    [read] = [record for record in recording.requests if record.request_id == odd.request_id]
    assert read.timeline.verifications[0].num_accepted == 2


def test_a_recording_from_before_speculation_can_be_read(tmp_path, records):
    path = tmp_path / "run.jsonl"
    write_jsonl(path, records[:1])
    path.write_text(path.read_text().replace(', "verifications": []', ""))
    assert "verifications" not in path.read_text()
    assert read_jsonl(path).requests == records[:1]


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", "{}", '{"type": "other"}', '{"type": "step", "step_id": 1}', '{"type": "request"}']
)
def test_a_bad_line_is_named(tmp_path, records, line):
    path = tmp_path / "run.jsonl"
    write_jsonl(path, records[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RecordingError, match=r"run\.jsonl, line 2"):
        read_jsonl(path)

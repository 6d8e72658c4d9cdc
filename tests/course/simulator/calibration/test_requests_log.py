"""Logs of requests: what is read, and what is refused with the line named."""

import json
from pathlib import Path

import pytest

from course.simulator.calibration.requests_log import (
    check_window,
    longest_request,
    read_requests_log,
    read_server_facts,
    timed,
)
from course.simulator.errors import RecordingError

ROW = {
    "request_id": "a",
    "input_toks": 10,
    "output_toks": 3,
    "queued_ts": 100.0,
    "scheduled_ts": 100.5,
    "first_token_ts": 101.0,
    "last_token_ts": 102.0,
}


def write(folder: Path, *rows: object) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return path


def test_rows_come_in_order_and_start_at_zero(tmp_path: Path) -> None:
    later = {**ROW, "request_id": "b", "queued_ts": 99.0}
    first, second = read_requests_log(write(tmp_path, ROW, later))
    assert (first.request_id, first.queued, second.queued) == ("b", 0.0, 1.0)
    assert (second.queue, second.ttft, second.e2e, second.tpot) == (0.5, 1.0, 2.0, 0.5)
    assert longest_request(tmp_path / "requests.jsonl") == 13


def test_three_columns_are_enough(tmp_path: Path) -> None:
    [request] = read_requests_log(write(tmp_path, {"input_toks": 1, "output_toks": 1, "queued_ts": 5}))
    assert not request.is_timed and request.request_id == "line-1"
    with pytest.raises(RecordingError, match="first_token_ts"):
        timed([request])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: "),
        ("[1]", "line 2: "),
        ({**ROW, "request_id": "b", "input_toks": 0}, "line 2: input_toks"),
        ({**ROW, "request_id": "b", "output_toks": 1.5}, "line 2: output_toks"),
        ({**ROW, "request_id": "b", "input_toks": True}, "line 2: input_toks"),
        ({"input_toks": 1, "output_toks": 1}, "line 2: queued_ts"),
        ({**ROW, "request_id": "b", "queued_ts": "now"}, "line 2: queued_ts"),
        ('{"input_toks": 1, "output_toks": 1, "queued_ts": NaN}', "line 2: queued_ts"),
        ({**ROW, "request_id": "b", "last_token_ts": 100.7}, "line 2: .*must ascend"),
        (ROW, "request_id twice"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        read_requests_log(write(tmp_path, ROW, row))


def test_no_log_at_all(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        read_requests_log(tmp_path / "absent.jsonl")
    with pytest.raises(RecordingError, match="no requests"):
        read_requests_log(write(tmp_path, ""))


def test_milliseconds_are_not_taken_for_seconds(tmp_path: Path) -> None:
    row = {"input_toks": 10, "output_toks": 3, "queued_ts": 1_700_000_000}
    assert len(read_requests_log(write(tmp_path, row))) == 1, "seconds since 1970 are fine"
    with pytest.raises(RecordingError, match="divide milliseconds by 1000"):
        read_requests_log(write(tmp_path, {**row, "queued_ts": 1_700_000_000_000}))


def test_a_table_is_sent_to_the_option_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="--trace"):
        read_requests_log(tmp_path / "azure.csv")


def test_a_request_beyond_the_models_window(tmp_path: Path) -> None:
    log = write(tmp_path, ROW)
    check_window(log, 13, "a-model")
    with pytest.raises(RecordingError, match=r"13 tokens, .* a-model's window is 12: .*--max-model-len"):
        check_window(log, 12, "a-model")


def test_facts_beside_a_log(tmp_path: Path) -> None:
    log = write(tmp_path, ROW)
    assert read_server_facts(log) == {}
    habits = {"vllm_version": "0.19.0", "resolved_config": {"scheduler_config": {"scheduler_reserve_full_isl": True}}}
    for meta, facts in (
        ([], {}),
        (
            {"engine_kwargs": {"max_num_seqs": 128, "max_model_len": 4096}, "kv_cache": {"num_gpu_blocks": 99}},
            {"max_num_seqs": 128, "max_model_len": 4096, "num_kv_blocks": 99},
        ),
        (habits, {"scheduler_reserve_full_isl": True, "null_block": True}),
    ):
        (tmp_path / "meta.json").write_text(json.dumps(meta))
        assert read_server_facts(log) == facts

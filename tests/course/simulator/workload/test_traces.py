"""Loaders for public traces: the real ones where they are, small ones everywhere, broken ones with a line number."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from course.simulator.errors import TraceError, WorkloadError
from course.simulator.workload.traces import from_lengths, load_azure, load_mooncake, load_trace, replayed

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROWS = "2023-11-16 18:17:03.97,48,10\n2023-11-16 18:17:04.03,31,8\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("trace", "num", "rate", "cv", "prompt", "output"),
    [("conv", 19366, 5.5, 1.09, 1020, 129), ("code", 8819, 2.55, 13.0, 1469, 13)],
)
def test_the_real_azure_traces(
    trace: str, num: int, rate: float, cv: float, prompt: int, output: int, recording: Callable[[str], Path]
) -> None:
    workload = load_azure(recording(f"AzureLLMInferenceTrace_{trace}.csv"))
    gaps = np.diff([r.arrival for r in workload])
    assert len(workload) == num
    assert num / workload.last_arrival == pytest.approx(rate, rel=0.05)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.05)
    assert np.median([r.num_prompt_tokens for r in workload]) == prompt
    assert np.median([r.output_tokens for r in workload]) == output


def test_azure(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:04.0000000,5,6\n"
    workload = load_azure(write(tmp_path / "t.csv", HEADER + rows))
    assert [r.arrival for r in workload] == pytest.approx([0.0, 0.02004, 0.052])
    assert [(r.num_prompt_tokens, r.output_tokens) for r in workload] == [(4808, 10), (5, 6), (3180, 8)]
    assert len({piece.name for r in workload for piece in r.pieces}) == 3
    assert len(load_azure(tmp_path / "t.csv", limit=2)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 2: TIMESTAMP"),
        (HEADER + "2023-11-16 18:17:03.97,1,2\nnonsense,1,2\n", "line 3: TIMESTAMP"),
        (HEADER + "2023-11-16 18:17:03.97,many,2\n", "line 2: ContextTokens"),
        (HEADER + "2023-11-16 18:17:03.97,0,2\n", "line 2: ContextTokens"),
        (HEADER + "2023-11-16 18:17:03.97,7\n", "line 2: GeneratedTokens"),
    ],
)
def test_broken_azure_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_azure(write(tmp_path / "t.csv", text))


def mooncake(**changes) -> str:
    row = {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 2353], **changes}
    return json.dumps(row) + "\n"


def test_mooncake_blocks_become_shared_pieces(tmp_path: Path) -> None:
    text = mooncake() + "\n" + mooncake(timestamp=27982, input_length=1024, hash_ids=[46, 47])
    first, second = load_mooncake(write(tmp_path / "t.jsonl", text))
    assert [piece.num_tokens for piece in first.pieces] == [512, 512, 176]
    assert second.pieces == first.pieces[:2]
    assert (first.arrival, second.arrival) == (0.0, 0.5)
    assert (first.num_prompt_tokens, first.output_tokens) == (1200, 52)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n", "line 1: "),
        (mooncake() + "[1]\n", "line 2: "),
        (mooncake() + "\n" + mooncake(hash_ids=[1]), "line 3: .*3 blocks of 512"),
        (mooncake(hash_ids=None), "line 1: hash_ids"),
        (mooncake(queued_ts=1.0), "line 1: .*--requests"),
        (mooncake(output_length=-1), "line 1: output_length"),
        (mooncake(output_length=2.5), "line 1: output_length"),
        (mooncake(timestamp="soon"), "line 1: timestamp"),
        (mooncake(timestamp=-5), "line 1: timestamp"),
    ],
)
def test_broken_mooncake_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_mooncake(write(tmp_path / "t.jsonl", text))


def test_a_recording_is_replayed_in_its_own_rhythm() -> None:
    trace = from_lengths([(0.0, 10, 1), (1.0, 20, 2), (5.0, 30, 3)], name="t")
    again = replayed(trace, rate=2.0, num_requests=3)
    assert [r.arrival for r in again] == [0.0, 0.2, 1.0], "gaps of 1 and 4 as 0.2 and 0.8; two gaps in a second"
    assert [(r.num_prompt_tokens, r.output_tokens) for r in again] == [(10, 1), (20, 2), (30, 3)]


def test_a_recording_that_is_too_short_begins_again_and_shares_nothing_with_itself() -> None:
    trace = from_lengths([(0.0, 10, 1), (1.0, 20, 2), (5.0, 30, 3)], name="t")
    again = replayed(trace, rate=1.0, num_requests=8)
    gaps = [b.arrival - a.arrival for a, b in itertools.pairwise(again)]
    assert gaps == pytest.approx([gap * 7 / sum((1, 4, 2.5, 1, 4, 2.5, 1)) for gap in (1, 4, 2.5, 1, 4, 2.5, 1)])
    assert [r.num_prompt_tokens for r in again] == [10, 20, 30, 10, 20, 30, 10, 20]
    assert again.shares_nothing and len({r.session for r in again}) == 8
    assert [r.index for r in again] == list(range(8))


def test_a_recording_without_a_rhythm_has_no_rate() -> None:
    trace = from_lengths([(3.0, 10, 1), (3.0, 20, 2)])
    assert replayed(trace, rate=1.0, num_requests=1).requests[0].arrival == 0
    with pytest.raises(WorkloadError, match="all come at once"):
        replayed(trace, rate=1.0, num_requests=2)


def test_azure_with_a_time_zone(tmp_path: Path) -> None:
    """The trace of 2024 writes it out."""
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n"
    workload = load_azure(write(tmp_path / "t.csv", HEADER + rows))
    assert [r.arrival for r in workload] == pytest.approx([0.0, 0.007405])


def test_a_trace_by_its_name_or_as_said(tmp_path: Path) -> None:
    csv, jsonl, other = tmp_path / "t.csv", tmp_path / "t.jsonl", tmp_path / "t.txt"
    csv.write_text(HEADER + AZURE_ROWS)
    jsonl.write_text(mooncake())
    other.write_text(HEADER + AZURE_ROWS)
    assert [r.num_prompt_tokens for r in load_trace(csv)] == [48, 31]
    assert len(load_trace(csv, limit=1)) == 1
    assert len(load_trace(jsonl).requests[0].pieces) == 3
    with pytest.raises(TraceError, match="one of Mooncake's"):
        load_trace(other)


@pytest.mark.parametrize("content", [None, b"", HEADER.encode(), b"\xff\xfe\x00"])
def test_a_trace_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.csv"):
        load_trace(path)

"""From bytes to deliveries: the same whatever the cuts between reads, each stamped with its last byte."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.loadgen.stream import read_answer


def sse(*payloads: object) -> bytes:
    return b"".join(f"data: {p if isinstance(p, str) else json.dumps(p)}\n\n".encode() for p in payloads)


def text(words: str, **more: object) -> dict:
    return {"choices": [{"index": 0, "text": words, "finish_reason": None, **more}]}


def delta(**fields: object) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
WHOLE = sse(text(" été"), text(" 🙂"), text("", finish_reason="stop"), USAGE, "[DONE]")


def test_a_token_without_text_came_when_its_event_came() -> None:
    used = {"choices": [], "usage": {"completion_tokens": 2}}
    silent, spoken, ended = sse(text("")), sse(text("a", finish_reason="length")), sse(text("", finish_reason="length"))
    assert read_answer([(1.0, silent), (2.0, spoken), (2.0, sse(used))]).token_moments == [1.0, 2.0]
    assert read_answer([(1.0, silent), (2.0, ended)]).token_moments == [], "without a count no event is one"
    assert read_answer([(1.0, sse(text("ab"))), (2.0, sse(used))]).token_moments == [1.0], "two tokens in one event"
    opening = sse(delta(role="assistant", content=""), delta(content="ab"))
    assert read_answer([(1.0, opening[:70]), (2.0, opening[70:] + sse(used))]).token_moments == [2.0]


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=30, unique=True).map(sorted))
def test_the_cuts_between_reads_change_stamps_only(cuts: list[int]) -> None:
    borders = [0, *cuts, len(WHOLE)]
    reads = [(float(i), WHOLE[a:b]) for i, (a, b) in enumerate(pairwise(borders))]
    answer = read_answer(reads)
    assert answer.text == " été 🙂"
    assert answer.is_whole
    first_end = len(sse(text(" été")))
    assert answer.deliveries[0] == next(stamp for stamp, end in zip(range(99), borders[1:]) if end >= first_end)


def test_carriage_returns_and_comments_are_part_of_the_format() -> None:
    answer = read_answer([(1.0, b": ping\r\n\r\n" + sse(text("a")).replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n")])
    assert answer.text == "a"
    assert answer.is_whole


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=repr)
def test_an_event_has_its_own_stamp_however_lines_end(ending: bytes) -> None:
    events = [sse(text(letter)).replace(b"\n", ending) for letter in "abc"]
    answer = read_answer([(float(stamp), event) for stamp, event in enumerate(events)])
    assert answer.deliveries == [0.0, 1.0, 2.0] and answer.text == "abc"
    cut = b"".join(events).partition(b"\r")
    assert read_answer([(1.0, cut[0] + cut[1]), (2.0, cut[2])]).text == "abc", "also in the middle of a line's end"


@pytest.mark.parametrize("nothing", [{"delta": None}, {}, {"delta": {}}, {"text": None}, {"delta": None, "text": "a"}])
def test_a_choice_without_news_is_no_error(nothing: dict) -> None:
    answer = read_answer([(1.0, sse({"choices": [{"index": 0, **nothing}]}) + WHOLE)])
    assert answer.error is None and answer.is_whole and answer.text == (nothing.get("text") or "") + " été 🙂"


@pytest.mark.parametrize(
    "fields", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"function": {"name": "f"}}]}]
)
def test_thoughts_and_tool_calls_are_tokens_too(fields: dict) -> None:
    assert read_answer([(1.0, sse(delta(**fields)))]).deliveries == [1.0]


def test_an_error_in_mid_stream_is_kept() -> None:
    answer = read_answer([(1.0, sse(text("a"), {"error": {"message": "out of memory"}}))])
    assert "out of memory" in answer.error
    assert not answer.is_whole


@pytest.mark.parametrize("payload", ["{broken", "[1, 2]", '"words"', '{"choices": [3]}', '{"choices": 5}'])
def test_what_is_not_the_api_is_an_error_and_does_not_raise(payload: str) -> None:
    answer = read_answer([(1.0, sse(text("a"), payload, text("b")))])
    assert "not what the API says" in answer.error
    assert answer.text == "ab"


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_it_raise(data: bytes) -> None:
    read_answer([(1.0, b"data: " + data + b"\n\n")])


def test_servers_own_times_are_kept_with_their_origin() -> None:
    answer = read_answer([(1.0, sse({**USAGE, "metrics": {"queue_time_ms": 12.0}}))])
    assert answer.server_times == {"from": "metrics", "queue_time_ms": 12.0}

"""An answer that is looked at while it arrives is the same in the end, and every byte of it is parsed once."""

from collections.abc import Iterator
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loadgen.test_stream import WHOLE, sse, text

from course.lab.growing_answer import GrowingAnswer
from course.loadgen import stream
from course.loadgen.stream import read_answer, stamped_events

cuts = st.lists(st.integers(1, len(WHOLE) - 1), max_size=30, unique=True).map(sorted)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@given(cuts=cuts)
def test_a_growing_answer_is_the_same_and_every_byte_is_read_once(line_end: bytes, cuts: list[int]) -> None:
    whole = WHOLE.replace(b"\n", line_end)
    reads = [(float(i), whole[a:b]) for i, (a, b) in enumerate(pairwise([0, *cuts, len(whole)]))]
    parsed = 0

    def counting(taken: list[stream.Read]) -> Iterator:
        nonlocal parsed
        parsed += sum(len(data) for _, data in taken)
        return stamped_events(taken)

    growing, seen = GrowingAnswer(), []
    with mock.patch.object(stream, "stamped_events", counting):
        for read in reads:
            seen.append(read)
            answer = growing.read(seen)
            growing.read(seen)  # another look, and nothing new
    assert parsed == len(whole)
    assert answer == read_answer(reads)


def test_a_growing_answer_shows_what_is_there_and_waits_for_the_rest() -> None:
    growing, event = GrowingAnswer(), sse(text("b"))
    reads = [(1.0, sse(text("a")) + event[:9])]
    assert growing.read(reads).text == "a"
    reads.append((2.0, event[9:]))
    assert growing.read(reads).deliveries == [1.0, 2.0]
    assert not growing.read(reads).is_whole

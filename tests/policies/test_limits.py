"""What a configuration refuses, who waits too long, what a window keeps: each limit just below, at, and above."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.errors import ConfigError, PromptTooLongError, QueueFullError
from minillm.core.params import SamplingParams
from minillm.core.request import Request, RequestStatus
from minillm.core.seams import KeepAll, SortedQueue
from minillm.core.timeline import Timeline
from minillm.policies.admission import RequestLimits
from minillm.policies.config import EngineConfig
from minillm.policies.preemption import Swap
from minillm.policies.queues import QueueTimeout
from minillm.policies.window import SlidingWindow, Window, make_layout


def limits(num_kv_blocks: int = 8, max_positions: int | None = 64, **fields: Any) -> RequestLimits:
    return RequestLimits(EngineConfig(block_size=4, max_num_seqs=1, **fields), max_positions, num_kv_blocks)


def request(name: str = "a", arrival: float = 0.0) -> Request:
    return Request(name, [1, 2, 3], SamplingParams(), Timeline(arrival))


def test_prompts_are_let_in_up_to_each_limit() -> None:
    """The pool holds 32 tokens; one of them is for output."""
    for door, longest, why in (
        (limits(), 31, "the KV pool has 8 blocks of 4"),
        (limits(16), 63, "max_model_len is 64"),
        (limits(99), 63, "max_model_len is 64"),
        (limits(99, max_model_len=40), 39, "max_model_len is 40"),
        (limits(max_prompt_tokens=10), 10, "max_prompt_tokens is 10"),
        (limits(sliding_window=4, long_prefill_token_threshold=4), 63, "max_model_len is 64"),
        (limits(sliding_window=4), 31, "the KV pool"),  # a chunk may be 1024 tokens
        (limits(sliding_window=4, max_num_batched_tokens=4), 63, "max_model_len is 64"),
        (limits(sliding_window=4, max_num_batched_tokens=4, enable_chunked_prefill=False), 31, "the KV pool"),
        (limits(sliding_window=4, long_prefill_token_threshold=4, kv_reservation="max_len"), 31, "the KV pool"),
    ):
        door.check(longest, 1, 0)
        with pytest.raises(PromptTooLongError, match=f"has {longest + 1} tokens.*{why}"):
            door.check(longest + 1, 1, 0)


def test_a_queue_has_as_many_places_as_it_says() -> None:
    door = limits(max_queue_len=4)
    door.check(1, 2, 2)
    with pytest.raises(QueueFullError, match="3 requests wait"):
        door.check(1, 2, 3)
    with pytest.raises(QueueFullError, match="n=5 can never fit"):
        door.check(1, 5, 0)


def test_the_context_window_is_the_models_or_a_shorter_one() -> None:
    with pytest.raises(ConfigError, match="needs max_model_len"):
        limits(max_positions=None)
    with pytest.raises(ConfigError, match="max_model_len is 65"):
        limits(max_model_len=65)
    assert limits(max_positions=None, max_model_len=20).max_model_len == 20
    assert limits(max_model_len=64).max_model_len == limits().max_model_len == 64


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"method": "draft_model"}, "wants a model"),
        ({"method": "ngram", "ngram_min": 5, "ngram_max": 4}, r"ngram_min \(5\) is larger"),
        ({"method": "draft_head", "ngram_max": 4}, "ngram_max is read only with method=ngram"),
    ],
)
def test_speculation_that_makes_no_sense_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineConfig(speculative=fields)


def test_only_who_never_ran_and_waited_longer_times_out() -> None:
    queue = QueueTimeout(SortedQueue(lambda waiting: 0), 5.0)
    first, second, preempted = request("first", 1.0), request("second", 3.0), request("preempted")
    preempted.status = RequestStatus.PREEMPTED
    for index, each in enumerate((first, second, preempted)):
        each.arrival_index = index
        queue.push(each)
    assert queue.overdue(6.0) == []
    assert queue.overdue(6.5) == [first] and queue.overdue(9.0) == [first, second]


def test_swap_keeps_all_of_a_request_or_nothing() -> None:
    swap = Swap(3, lambda request: 0)
    first, second = request("first"), request("second")
    saved = swap.save(first, {0: 7, 2: 9})
    assert [copy.source for copy in saved] == [7, 9] and swap.num_free == 1
    assert swap.save(second, {0: 1, 1: 2}) == () and swap.num_free == 1
    assert len(swap.save(second, {0: 1})) == 1 and swap.num_free == 0
    swap.check_integrity()
    back = swap.restore(first, {2: 4, 3: 5})  # block 0 has left the window, block 3 is new
    assert [(copy.source, copy.target) for copy in back] == [(saved[1].target, 4)]
    swap.forget(second)
    swap.forget(second)
    assert swap.num_free == 3
    swap._free.append(0)
    with pytest.raises(AssertionError, match="leaked"):
        swap.check_integrity()


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 5), st.integers(0, 50), st.integers(1, 12))
def test_a_window_keeps_the_blocks_that_some_token_still_sees(
    size: int, sinks: int, block_size: int, position: int, chunk: int
) -> None:
    window, end = Window(size, sinks), position + chunk
    seen = {key for token in range(position, end) for key in range(end) if key < sinks or token - size < key <= token}
    live = window.live_blocks(position, end, block_size)
    assert live == sorted(set(live)) and {key // block_size for key in seen} <= set(live)
    kept = SlidingWindow(window, block_size, chunk)
    assert len(live) <= (kept.peak_blocks or 0)
    gone = kept.expired(position)
    assert not set(gone) & set(live) and set(gone) | set(live) >= set(range(-(-end // block_size)))
    assert window.blocks_held(position, block_size) == len(window.live_blocks(position, position, block_size))
    assert Window().live_blocks(position, end, block_size) == list(range(-(-end // block_size)))


def test_the_layout_knows_the_longest_chunk() -> None:
    assert isinstance(make_layout(EngineConfig(block_size=4)), KeepAll)
    by_budget = make_layout(EngineConfig(block_size=4, sliding_window=8, max_num_batched_tokens=32))
    by_threshold = make_layout(EngineConfig(block_size=4, sliding_window=8, long_prefill_token_threshold=32))
    assert by_budget.peak_blocks == by_threshold.peak_blocks == 1 + -(-(7 + 32) // 4)

"""What a configuration refuses, who waits too long, what a window keeps: each limit just below, at, and above."""

import gc
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from integrity import check_swap

from minillm.core.errors import ConfigError, PromptTooLongError, QueueFullError
from minillm.core.params import SamplingParams
from minillm.core.request import Request, RequestStatus
from minillm.core.seams import KeepAll, SortedQueue
from minillm.core.timeline import Timeline
from minillm.kernels.attention.window import Window
from minillm.policies.assemble import make_scheduler
from minillm.policies.config import EngineConfig, SpeculativeConfig, parse_fields
from minillm.policies.limits import RequestLimits
from minillm.policies.preemption import Swap
from minillm.policies.queues import QueueTimeout, StaticBatches, TwoLaneQueue, shortest_prompt
from minillm.policies.window import SlidingWindow, make_layout
from minillm.strict_model import default_of

ARRIVALS = count()


def limits(num_kv_blocks: int = 8, max_positions: int | None = 64, **fields: Any) -> RequestLimits:
    return RequestLimits(EngineConfig(block_size=4, max_num_seqs=1, **fields), max_positions, num_kv_blocks)


def request(name: str = "a", arrival: float = 0.0, num_tokens: int = 3) -> Request:
    return Request(name, [1] * num_tokens, SamplingParams(), Timeline(arrival), arrival_index=next(ARRIVALS))


def queued(queue: Any, *requests: Request) -> Any:
    for each in requests:
        queue.push(each)
    return queue


def test_prompts_are_let_in_up_to_each_limit() -> None:
    """The pool holds 32 tokens; one of them is for output."""
    for door, longest, why in (
        (limits(), 31, "the KV pool has 8 blocks of 4"),
        (limits(16), 63, "max_model_len is 64"),
        (limits(99), 63, "max_model_len is 64"),
        (limits(99, max_model_len=40), 39, "max_model_len is 40"),
        (limits(max_prompt_tokens=10), 10, "max_prompt_tokens is 10"),
        (limits(sliding_window=4, long_prefill_token_threshold=4), 63, "max_model_len is 64"),
        (limits(3, sliding_window=4, long_prefill_token_threshold=4), 63, "max_model_len is 64"),
        (limits(2, sliding_window=4, long_prefill_token_threshold=4), 7, "the KV pool"),
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
    door.check(1, 4, 0)
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
        ({"method": "ngram", "model": "smollm2-135m"}, "model is read only with method=draft_model or draft_head"),
    ],
)
def test_speculation_that_makes_no_sense_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineConfig(speculative=fields)
    with pytest.raises(ConfigError, match=f"^[^()]*{why}") as caught:
        SpeculativeConfig(**fields)
    assert "(got" not in str(caught.value), "it is about no single field"


def test_fields_are_read_from_assignments() -> None:
    assert parse_fields(None, "--set") == {}
    given = ["seed=7", "model=a=b", "speculative.method=ngram", "speculative.k=[3]"]
    assert parse_fields(given, "--set") == {"seed": 7, "model": "a=b", "speculative": {"method": "ngram", "k": [3]}}
    for wrong, why in (
        (["seed"], "--set wants FIELD=VALUE.*got 'seed'"),
        (["=7"], "wants FIELD=VALUE"),
        (["seed=1", "seed=2"], "--set seed=2: seed was given before"),
        (["a=1", "a.b.c=2"], "--set a.b.c=2: a was given a plain value"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_fields(wrong, "--set")


def test_only_who_never_ran_and_waited_longer_times_out() -> None:
    first, second, preempted = request("first", 1.0), request("second", 3.0), request("preempted")
    preempted.status = RequestStatus.PREEMPTED
    queue = queued(QueueTimeout(SortedQueue(), 5.0), first, second, preempted)
    assert queue.overdue(6.0) == []
    assert queue.overdue(6.5) == [first] and queue.overdue(9.0) == [first, second]


def test_a_queue_with_a_limit_lets_go_of_who_has_left_it() -> None:
    waiting = [request(f"waited {i}", float(i)) for i in range(100)]
    queue = queued(QueueTimeout(SortedQueue(), 1000.0), *waiting)
    names = {each.request_id for each in waiting}
    for each in waiting[:50]:
        queue.remove(each)
        each.status = RequestStatus.FINISHED
    while queue.peek(0) is not None:
        queue.pop().status = RequestStatus.FINISHED
    del waiting, each
    assert sum(isinstance(each, Request) and each.request_id in names for each in gc.get_objects()) <= 1


def test_a_static_batch_is_closed_but_for_its_own_members() -> None:
    first, second, third = (request(name) for name in ("first", "second", "third"))
    queue = QueueTimeout(StaticBatches(SortedQueue(), 2), 5.0)
    assert queued(queue, first, second).peek(1) is None, "nobody opened a batch yet"
    assert queue.peek(0) is first and queue.pop() is first
    queued(queue, third)
    assert queue.peek(1) is second and queue.pop() is second and queue.peek(2) is None
    first.status = RequestStatus.PREEMPTED
    queued(queue, first)
    assert queue.peek(1) is first and queue.pop() is first and queue.peek(2) is None
    assert queue.peek(0) is third


def test_a_wrapped_queue_is_asked_with_what_was_given() -> None:
    inner = QueueTimeout(SortedQueue(), 5.0)
    waiting = request()
    outer = queued(StaticBatches(inner, 1), waiting)
    assert outer.overdue(5.0) == [] and outer.overdue(5.1) == [waiting]


def test_who_is_first_in_each_order() -> None:
    short, longer, long = request("short"), request("longer", num_tokens=9), request("long", num_tokens=8)
    longer.status = RequestStatus.PREEMPTED
    assert queued(SortedQueue(shortest_prompt), short, long, longer).peek(0) is longer
    assert queued(TwoLaneQueue(8), longer, long).peek(0) is long, "at the threshold a prompt is still short"


def test_swap_keeps_all_of_a_request_or_nothing() -> None:
    swap = Swap(3, lambda request: 0)
    first, second = request("first"), request("second")
    saved = swap.save(first, {0: 7, 2: 9})
    assert [copy.source for copy in saved] == [7, 9] and swap.num_free == 1
    assert swap.save(second, {0: 1, 1: 2}) == () and swap.num_free == 1
    assert len(swap.save(second, {0: 1})) == 1 and swap.num_free == 0
    check_swap(swap)
    back = swap.restore(first, {2: 4, 3: 5})  # block 0 has left the window, block 3 is new
    assert [(copy.source, copy.target) for copy in back] == [(saved[1].target, 4)]
    swap.forget(second)
    swap.forget(second)
    assert swap.num_free == 3
    many = Swap(10**18, lambda request: 0)  # that no list could hold
    assert {copy.target for copy in many.save(first, {0: 7, 1: 9})} == {0, 1} and many.num_free == 10**18 - 2
    check_swap(many)
    swap._free.append(0)
    with pytest.raises(AssertionError, match="leaked"):
        check_swap(swap)


@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 5), st.integers(0, 50), st.integers(1, 12))
def test_a_window_keeps_the_blocks_that_some_token_still_sees(
    size: int, sinks: int, block_size: int, position: int, chunk: int
) -> None:
    window, end = Window(size, sinks), position + chunk
    seen = {key for token in range(position, end) for key in range(end) if key < sinks or token - size < key <= token}
    live = window.live_blocks(position, end, block_size)
    assert live == sorted(set(live)) and {key // block_size for key in seen} <= set(live)
    kept = SlidingWindow(window, block_size, chunk)
    assert len(live) <= kept.peak_blocks
    gone = kept.expired(position)
    assert not set(gone) & set(live) and set(gone) | set(live) >= set(range(-(-end // block_size)))
    assert Window().live_blocks(position, end, block_size) == list(range(-(-end // block_size)))


def test_the_layout_knows_the_longest_chunk() -> None:
    assert isinstance(make_layout(EngineConfig(block_size=4)), KeepAll)
    by_budget = make_layout(EngineConfig(block_size=4, sliding_window=8, max_num_batched_tokens=33))
    fields = EngineConfig(block_size=4, sliding_window=8, long_prefill_token_threshold=33)
    assert by_budget.peak_blocks == make_layout(fields).peak_blocks == 1 + -(-(7 + 33) // 4)
    with_sinks = make_layout(EngineConfig(block_size=4, sliding_window=8, attention_sinks=5))
    assert with_sinks.expired(40) == range(2, 8)
    scheduler = make_scheduler(fields, num_kv_blocks=9, num_host_blocks=0, max_model_len=64)
    assert isinstance(scheduler.kv.layout, SlidingWindow) and scheduler.kv.null_block == 9
    scheduler.add(request(num_tokens=40))
    assert [scheduler.schedule(0.0).num_tokens for _ in range(3)] == [33, 7, 1]
    small = fields.replace(sliding_window=4, long_prefill_token_threshold=4, scheduler_reserve_full_isl=True)
    scheduler = make_scheduler(small, num_kv_blocks=4, num_host_blocks=0, max_model_len=64)
    scheduler.add(request(num_tokens=40))
    assert scheduler.schedule(0.0).num_tokens == 4, "a window never holds more than 3 blocks"


def test_a_gpu_gets_larger_steps_unless_told_otherwise() -> None:
    given = ({}, {"max_num_seqs": 4}, {"max_num_batched_tokens": 100}, {"max_num_seqs": 7, "max_num_batched_tokens": 9})
    on_gpu = [EngineConfig(**fields).for_device("cuda") for fields in given]
    assert [(config.max_num_seqs, config.max_num_batched_tokens) for config in on_gpu] == [
        (256, 8192),
        (4, 8192),
        (100, 100),
        (7, 9),
    ]
    assert EngineConfig(batching="none").for_device("cuda").max_num_seqs == EngineConfig().max_num_seqs
    assert EngineConfig().for_device("cpu") == EngineConfig()
    assert default_of(EngineConfig, "max_num_batched_tokens") == EngineConfig().max_num_batched_tokens

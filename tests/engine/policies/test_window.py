"""Blocks that leave a sliding window go back to the pool: held blocks stay bounded, and none is lost or found twice."""

import pytest
from core.room import make_room
from hypothesis import given, settings
from hypothesis import strategies as st
from integrity import check_blocks, check_scheduler

from minillm.core.block_manager import BlockManager
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request
from minillm.core.timeline import Timeline
from minillm.kernels.attention.window import Window
from minillm.policies.assemble import make_scheduler
from minillm.policies.config import EngineConfig
from minillm.policies.window import SlidingWindow


def make(
    window: Window, num_blocks: int = 64, block_size: int = 4, caching: bool = False, max_chunk: int = 25
) -> BlockManager:
    layout = SlidingWindow(window, block_size, max_chunk)
    return BlockManager(num_blocks, block_size, enable_prefix_caching=caching, layout=layout)


def make_request(name: str, num_tokens: int) -> Request:
    return Request(name, list(range(num_tokens)), SamplingParams(), Timeline(0.0))


def compute(kv: BlockManager, request: Request, end: int, prefix: list[int] | None = None) -> bool:
    done = make_room(kv, request, end, prefix or ())
    request.num_computed_tokens = end if done else request.num_computed_tokens
    check_blocks(kv)
    return done


def test_a_prefix_that_was_found_is_shared_as_far_as_it_is_seen() -> None:
    kv = make(Window(8, 4), caching=True)
    first, second = make_request("a", 60), make_request("b", 60)
    compute(kv, first, 60)
    prefix = kv.find_prefix(second)
    assert len(prefix) == 14
    assert compute(kv, second, 60, prefix)
    assert (held := list(kv.held_blocks(second).values()))[:1] == prefix[:1] and held[1:-1] == prefix[12:]
    assert kv.pool.num_used == 15 + 1
    kv.free(first)
    kv.free(second)
    check_blocks(kv)
    assert kv.pool.num_used == 0


def test_a_prefix_longer_than_the_pool_has_room_for() -> None:
    """Sharing all of it would take the last free blocks, and the request would wait for ever."""
    kv = make(Window(4), num_blocks=8, caching=True)
    first = make_request("a", 32)
    compute(kv, first, 32)
    kv.free(first)
    second = make_request("b", 64)
    assert compute(kv, second, 48, kv.find_prefix(second)[:7])


@settings(max_examples=60)
@given(
    size=st.integers(1, 30),
    sinks=st.integers(0, 12),
    block_size=st.integers(1, 7),
    caching=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 25), st.booleans()), max_size=60),
)
def test_no_block_is_lost(size: int, sinks: int, block_size: int, caching: bool, steps: list) -> None:
    kv = make(Window(size, sinks), 40, block_size, caching)
    live: dict[str, Request] = {}
    for name, num_tokens, ends in steps:
        request = live.setdefault(name, make_request(name, 300))
        if ends and name in kv.tables:
            kv.free(request)
            del live[name]
        else:
            admitted = name in kv.tables
            prefix = [] if admitted else kv.find_prefix(request)
            start = request.num_computed_tokens if admitted else len(prefix) * block_size
            end = min(start + num_tokens, 300)
            if make_room(kv, request, end, prefix):
                request.num_computed_tokens = end
        check_blocks(kv)
    for name in list(kv.tables):
        kv.free(live[name])
    assert kv.pool.num_used == 0
    check_blocks(kv)


def test_sinks_without_a_window_are_refused() -> None:
    with pytest.raises(ConfigError, match="set that, too"):
        EngineConfig(attention_sinks=4)


@pytest.mark.parametrize("sinks", [0, 4])
def test_a_draft_models_blocks_have_no_holes_where_the_models_have(sinks: int) -> None:
    """Two managers know the same request: what has left one's window has not left the other's cache."""
    windowed, whole = make(Window(size=8, sinks=sinks)), BlockManager(64, 4)
    request = make_request("a", 60)
    assert compute(windowed, request, 40) and compute(windowed, request, 41)
    assert windowed.null_block in windowed.block_ids(request)
    assert make_room(whole, request, 41)
    assert len(whole.held_blocks(request)) == len(whole.block_ids(request)) == 11


def test_looking_ahead_counts_of_a_shared_prefix_only_what_stays_in_the_window() -> None:
    """The prefix has 15 blocks, of which the newcomer shares those of a window of 8 tokens. They are given back as it
    goes on: in the end it holds 4 blocks of its own."""
    kv = make(Window(8), num_blocks=15 + 4, caching=True, max_chunk=4)
    holder, newcomer = make_request("a", 60), make_request("b", 100)
    compute(kv, holder, 60)
    prefix = kv.find_prefix(newcomer)
    assert len(prefix) == 15
    most = kv.layout.peak_blocks
    assert most == 4 and kv.pool.num_free == most
    assert kv.can_allocate(kv.plan(60, 64, prefix, look_ahead_to=100))
    compute(kv, Request("c", [999] * 4, SamplingParams(), Timeline(0.0)), 4)
    one_less_is_free = kv.plan(60, 64, prefix, look_ahead_to=100)
    assert not kv.can_allocate(one_less_is_free), "however much others hold of the prefix"
    assert kv.can_allocate(kv.plan(60, 64, prefix)), "its prompt ends before what it shares has left the window"


def test_looking_ahead_counts_sinks_that_others_hold() -> None:
    kv = make(Window(8, 4), num_blocks=15 + 4, caching=True, max_chunk=4)
    holder, newcomer = make_request("a", 60), make_request("b", 100)
    compute(kv, holder, 60)
    most = kv.layout.peak_blocks
    assert most == 5 and kv.pool.num_free == 4
    shares_a_sink = kv.plan(60, 64, kv.find_prefix(newcomer), look_ahead_to=100)
    assert kv.can_allocate(shares_a_sink), "one of its 5 blocks is the other's first"
    assert not kv.can_allocate(kv.plan(0, 4, look_ahead_to=100))


def test_a_whole_prompt_waits_until_all_its_blocks_are_free() -> None:
    """Without chunks it takes more at once than a window ever keeps. (It was admitted, and the engine then died.)"""
    whole = {"enable_chunked_prefill": False, "enable_prefix_caching": False}
    config = EngineConfig(block_size=4, sliding_window=8, max_num_batched_tokens=16, max_num_seqs=3, **whole)
    scheduler = make_scheduler(config, num_kv_blocks=10, num_host_blocks=0, max_model_len=40)
    short, long = make_request("short", 12), make_request("long", 36)
    scheduler.add(short)
    assert [part.request for part in scheduler.schedule(0.0).requests] == [short]
    scheduler.add(long)
    assert long not in [part.request for part in scheduler.schedule(1.0).requests], "7 of its 9 blocks are free"
    scheduler.finish(short, FinishReason.ABORT)
    assert [part.num_tokens for part in scheduler.schedule(2.0).requests] == [36]
    check_scheduler(scheduler)

"""Prefix hashes, and what the manager makes of them."""

from itertools import product

import pytest
from core.room import make_room
from hypothesis import given
from hypothesis import strategies as st
from integrity import check_blocks

from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import extend_hashes
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline


def make_request(token_ids: list[int], request_id: str = "r", cache_salt: str = "") -> Request:
    return Request(request_id, token_ids, SamplingParams(), Timeline(0.0), cache_salt=cache_salt)


def make_manager(num_blocks: int = 16, reserve_tokens: int = 0) -> BlockManager:
    return BlockManager(num_blocks, 4, reserve_tokens=reserve_tokens)


def test_a_slice_of_a_request_is_one_of_prompt_output_and_draft():
    for prompt, output, draft, start, end in product(*[range(4)] * 3, *[range(10)] * 2):
        request, everything = make_request(list(range(prompt))), list(range(prompt + output + draft))
        request.output_token_ids = everything[prompt : prompt + output]
        request.draft.token_ids = everything[prompt + output :]
        assert request.token_ids(start, end) == everything[start:end]


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40))
def test_chains_agree_exactly_as_far_as_the_tokens_do(a: list[int], b: list[int]):
    chain_a, chain_b = extend_hashes(make_request(a), 4), extend_hashes(make_request(b), 4)
    assert len(chain_a) == len(a) // 4
    for i, (x, y) in enumerate(zip(chain_a, chain_b)):
        assert (x == y) == (a[: 4 * i + 4] == b[: 4 * i + 4])


salts = st.sampled_from(["", "a", "b"]) | st.text(max_size=4)
prompts = st.lists(st.integers(0, 2), min_size=8, max_size=30)


@given(prompts, prompts, salts, salts)
def test_blocks_are_shared_within_a_salt_and_never_across(a: list[int], b: list[int], salt: str, other: str):
    manager = make_manager()
    make_room(manager, make_request(a, "first", salt), len(a))
    alone = make_manager()
    make_room(alone, make_request(a, "first"), len(a))
    found = manager.find_prefix(make_request(b, "second", other))
    assert found == (alone.find_prefix(make_request(b, "second")) if salt == other else [])
    names = [set(extend_hashes(make_request(tokens, "r", own), 4)) for tokens, own in ((a, salt), (b, other))]
    assert salt == other or names[0].isdisjoint(names[1])


def test_no_salt_passes_for_a_prefix():
    """Named by the tokens of a block, as text, it would: then another's second block would be found as a first one."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    manager = make_manager()
    make_room(manager, make_request(tokens, "first"), 9)
    salt = b"".join(token.to_bytes(8, "little") for token in tokens[:4]).decode()
    assert manager.find_prefix(make_request(tokens[4:], "second", salt)) == []


def test_the_chain_grows_with_the_output():
    request = make_request([1, 2, 3, 4, 5])
    assert len(extend_hashes(request, 4)) == 1
    request.output_token_ids += [6, 7, 8]
    chain = extend_hashes(request, 4)
    assert chain is request.block_hashes and all(len(block_hash) == 16 for block_hash in chain)
    assert chain == extend_hashes(make_request([1, 2, 3, 4, 5, 6, 7, 8]), 4)


def test_a_second_request_shares_the_first_ones_blocks():
    manager = make_manager()
    first, second = make_request(list(range(10)), "first"), make_request(list(range(10)) + [99], "second")
    assert make_room(manager, first, 10)
    prefix = manager.find_prefix(second)
    assert prefix == manager.block_ids(first)[:2]
    assert make_room(manager, second, 11, prefix)
    assert manager.block_ids(second)[:2] == manager.block_ids(first)[:2]
    assert manager.pool.num_used == 4
    check_blocks(manager)


def test_a_complete_hit_leaves_one_token_to_compute():
    manager = make_manager()
    request = make_request(list(range(8)), "first")
    make_room(manager, request, 8)
    assert len(manager.find_prefix(make_request(list(range(8))))) == 1  # not 2: the last token is needed


def test_a_prefix_outlives_its_request_and_is_counted_when_revived():
    manager = make_manager(num_blocks=3)
    first = make_request(list(range(8)), "first")
    make_room(manager, first, 8)
    manager.free(first)
    assert manager.pool.num_free == 3
    longer = make_request(list(range(8)) + [9] * 8, "longer")
    prefix = manager.find_prefix(longer)
    assert len(prefix) == 2
    # 4 blocks are needed: 2 revived ones and 2 new ones, of which only 1 is free
    assert not make_room(manager, longer, 16, prefix)
    with pytest.raises(IndexError, match="4 blocks wanted, 3 free"):
        manager.allocate(longer, manager.plan(8, 16, prefix))
    check_blocks(manager)
    assert make_room(manager, longer, 12, prefix)


def test_what_was_forgotten_stays_so_when_the_request_grows():
    manager, request = make_manager(), make_request(list(range(8)))
    make_room(manager, request, 4)
    manager.pool.forget_prefixes()
    make_room(manager, request, 8)
    assert len(manager.pool.index) == 1


def test_max_len_reserves_the_window_at_once_and_no_more_later():
    manager = make_manager(reserve_tokens=24)
    request = make_request(list(range(5)))
    assert make_room(manager, request, 5)
    assert len(manager.block_ids(request)) == 6
    assert make_room(manager, request, 23)
    assert len(manager.block_ids(request)) == 6

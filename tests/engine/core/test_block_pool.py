"""The block pool: no leak, no double free, reference counts, eviction order, O(1) operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from integrity import check_pool

from minillm.core.block_pool import BlockPool, FreeBlocks


def test_blocks_run_out_and_come_back():
    pool = BlockPool(4)
    table = pool.allocate(4)
    assert table == [0, 1, 2, 3] and pool.num_free == 0
    with pytest.raises(IndexError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)
    pool.release(table)
    assert pool.num_free == 4


def test_a_double_free_is_caught():
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(ValueError, match="no request holds it"):
        pool.release(table)


def test_a_shared_block_is_free_only_when_the_last_holder_lets_go():
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.share(table)
    pool.release(table)
    assert pool.num_free == 1
    pool.release(table)
    assert pool.num_free == 2


def test_the_tail_of_a_sequence_is_evicted_before_its_head():
    pool = BlockPool(3)
    table = pool.allocate(3)
    for i, block_id in enumerate(table):
        pool.register(block_id, bytes([i]))
    pool.release(table)
    assert pool.allocate(1) == [table[2]]
    assert pool.find(bytes([0])) == table[0] and pool.find(bytes([2])) is None


def test_blocks_that_cache_nothing_are_reused_first_and_the_rest_least_recently_used_first():
    pool = BlockPool(4)
    a, b, c, d = pool.allocate(4)
    for block_id, name in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.register(block_id, name)
    for block_id in (a, b, c, d):
        pool.release([block_id])
    pool.share([a])  # a hit makes it the most recently used
    pool.release([a])
    assert pool.allocate(4) == [d, b, c, a]


def test_the_hash_dies_when_the_block_is_given_to_somebody_else():
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.register(table[0], b"x")
    pool.release(table)
    assert pool.find(b"x") == table[0]
    pool.allocate(1)
    assert pool.find(b"x") is None


def test_an_equal_block_does_not_replace_the_one_that_is_indexed():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"x")
    pool.register(second, b"x")
    assert pool.find(b"x") == first
    check_pool(pool, [[first], [second]])


def test_eviction_never_scans(monkeypatch: pytest.MonkeyPatch):
    """Compact engines have walked their whole prefix tree for every block they evict."""
    pool = BlockPool(1000)
    for block_id in pool.allocate(1000):
        pool.register(block_id, block_id.to_bytes(4, "big"))
    pool.release(range(1000))
    monkeypatch.setattr(FreeBlocks, "__iter__", lambda self: pytest.fail("the free blocks were walked"))
    pool.ref_counts, pool.hashes = LookupOnly(pool.ref_counts), LookupOnly(pool.hashes)
    pool.index = LookupOnlyDict(pool.index)
    taken = pool.allocate(10)
    assert taken == list(range(999, 989, -1)), "least recently used first"
    assert len(pool.index) == 990


class LookupOnly(list):
    def __iter__(self):
        pytest.fail("all blocks were walked")


class LookupOnlyDict(dict):
    __iter__ = keys = values = items = lambda self: pytest.fail("the index was walked")


@pytest.mark.parametrize("damage", ["leak", "count", "index", "table"])
def test_the_check_of_a_pool_sees_damage(damage: str):
    pool = BlockPool(4)
    table = pool.allocate(2)
    pool.register(table[0], b"x")
    check_pool(pool, [table])
    if damage == "leak":
        pool.free.take(1)
    elif damage == "count":
        pool.ref_counts[table[0]] += 1
    elif damage == "index":
        del pool.index[b"x"]
    else:
        table = [table[0], table[0]]
    with pytest.raises(AssertionError):
        check_pool(pool, [table])


class PoolMachine(RuleBasedStateMachine):
    """Random allocations, shares, releases and hashes; after each, everything must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[list[int]] = []
        self.num_hashes = 0

    @rule(count=st.integers(1, 5))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(IndexError):
                self.pool.allocate(count)
        else:
            self.tables.append(self.pool.allocate(count))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        if self.pool.hashes[block_id] is None:
            self.num_hashes += 1
            self.pool.register(block_id, self.num_hashes.to_bytes(4, "big"))

    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        if self.num_hashes:
            name = data.draw(st.integers(1, self.num_hashes)).to_bytes(4, "big")
            block_id = self.pool.find(name)
            if block_id is not None:
                self.pool.share([block_id])
                self.tables.append([block_id])

    @rule()
    def forget(self) -> None:
        self.pool.forget_prefixes()

    @invariant()
    def everything_agrees(self) -> None:
        check_pool(self.pool, self.tables)
        assert self.pool.num_free + self.pool.num_used == 12


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40)

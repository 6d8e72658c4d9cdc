"""The books of an engine's parts, compared with each other: what one part counts, another holds.

Every function raises AssertionError where two disagree.
"""

from collections.abc import Iterable, Sequence
from functools import singledispatch

from minillm import Engine
from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import BlockPool
from minillm.core.engine import EngineCore
from minillm.core.request import RequestStatus
from minillm.core.scheduler import Scheduler
from minillm.policies.preemption import Swap


def check_engine(engine: Engine) -> None:
    """Core and frontend agree about what is in flight, and all parts of the core with each other."""
    check_core(engine.core)
    assert all(not group.finished for group in engine.outputs.groups.values()), "a finished request was kept"
    in_flight = {request.request_id for request in engine.outputs.sequences}
    assert in_flight == set(engine.core.requests), "core and frontend disagree about what is in flight"


@singledispatch
def check_core(core: EngineCore) -> None:
    """Scheduler and engine agree about what is in flight."""
    check_scheduler(core.scheduler)
    in_scheduler = {request.request_id for request in (*core.scheduler.running, *core.scheduler.waiting)}
    assert in_scheduler == set(core.requests), "scheduler and engine disagree about what is in flight"


def check_scheduler(scheduler: Scheduler) -> None:
    """Queues and block tables agree."""
    kv, running = scheduler.kv, scheduler.running
    check_blocks(kv)
    assert set(kv.tables) == {request.request_id for request in running}, "a block table leaked"
    assert len(running) <= scheduler.config.max_num_seqs, "more run than there are slots"
    assert all(request.status is RequestStatus.RUNNING for request in running)
    for request in running:
        held = len(kv.block_ids(request)) * kv.block_size
        assert request.num_computed_tokens <= held, "tokens were computed without room to keep them"
        assert request.num_computed_tokens <= request.num_tokens, "more was computed than there is"
    for request in scheduler.waiting:
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def check_blocks(kv: BlockManager) -> None:
    """Block tables and pool agree."""
    null = kv.null_block
    check_pool(kv.pool, [[each for each in table.block_ids if each != null] for table in kv.tables.values()])


@singledispatch
def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Counts, free blocks and prefix index agree with the block tables in use."""
    holders = [0] * len(pool)
    for table in tables:
        assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
        for block_id in table:
            holders[block_id] += 1
    if pool.ref_counts != holders:  # compared as whole lists first: a pool may have 100,000 blocks
        for block_id, (counted, held) in enumerate(zip(pool.ref_counts, holders, strict=True)):
            assert counted == held, f"block {block_id}: {counted} counted, {held} holders"
    free = list(pool.free)
    assert len(free) == len(set(free)), "a block is free twice"
    is_free = not any(map(holders.__getitem__, free)) and len(free) == holders.count(0)
    assert is_free, "free blocks and counts disagree"
    for block_hash, block_id in pool.index.items():
        assert pool.hashes[block_id] == block_hash, f"block {block_id} is indexed under a hash it does not have"
    hashed = len(pool.hashes) - pool.hashes.count(None)
    assert hashed == len(pool.index), "a block has a hash that the index does not know"


def check_swap(swap: Swap) -> None:
    """No host block is held twice, or lost."""
    held = [block for blocks in swap._saved.values() for block in blocks.values()]
    assert sorted(held + swap._free) == list(range(swap._num_touched)), "a host block leaked"
    assert swap._num_touched <= swap.num_blocks, "there are fewer host blocks"

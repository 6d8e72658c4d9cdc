"""Which cached prefix is evicted first: each policy against a small model, in the pool, the engine, the simulator."""

from collections import Counter
from typing import Any

import pytest
from fake_runner import FakeRunner, drain, greedy
from hypothesis import given, settings
from hypothesis import strategies as st
from integrity import check_pool, check_scheduler

from course.simulator.deployment import Deployment
from minillm.core.block_manager import BlockManager
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request
from minillm.core.scheduler import Scheduler, SchedulerConfig
from minillm.core.timeline import Timeline, VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig
from minillm.policies.eviction import make_pool

TTL_S, ROOM = 5.0, 6
POLICIES = {"lru": {}, "fifo": {"prefix_eviction": "fifo"}, "ttl": {"prefix_eviction": "ttl", "prefix_ttl_s": TTL_S}}
NO_NAME = b""


class Model:
    """Names instead of blocks. Of what no request holds, each policy needs one number to say who goes first."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.held = Counter[bytes]()
        self.stamps: dict[bytes, tuple[float, float]] = {}
        """Name -> (what puts it in order, when it was last freed), also of what is held again."""
        self.num_freed = 0

    @property
    def cached(self) -> list[bytes]:
        return sorted((name for name in self.stamps if not self.held[name]), key=lambda name: self.stamps[name][0])

    def find(self, names: list[bytes], now: float) -> int:
        for name in self.cached:
            if self.policy == "ttl" and now - self.stamps[name][1] > TTL_S:
                del self.stamps[name]
        missing = (index for index, name in enumerate(names) if name not in self.cached and not self.held[name])
        return next(missing, len(names))

    def begin(self, names: list[bytes], num_found: int) -> list[bytes]:
        self.held.update(names[:num_found])
        used = sum(n if name == NO_NAME else n > 0 for name, n in self.held.items()) + len(self.cached)
        for name in self.cached[: max(used + len(names) - num_found - ROOM, 0)]:
            del self.stamps[name]
        new = [NO_NAME if name in self.cached or self.held[name] else name for name in names[num_found:]]
        self.held.update(new)
        return names[:num_found] + new

    def end(self, names: list[bytes], now: float) -> None:
        for name in reversed(names):
            self.held[name] -= 1
            if name != NO_NAME and not self.held[name]:
                self.num_freed += 1
                is_old = self.policy == "fifo" and name in self.stamps
                self.stamps[name] = (self.stamps[name][0] if is_old else self.num_freed, now)


# A prompt: which first block, and how many follow. Or the index of one to end. Each after some seconds.
events = st.tuples(
    st.integers(0, 3) | st.tuples(st.integers(0, 2), st.integers(1, 4)), st.sampled_from([0.0, 1.0, 4.0])
)


@settings(max_examples=300)
@given(policy=st.sampled_from(list(POLICIES)), script=st.lists(events, min_size=5, max_size=40))
def test_the_pool_forgets_what_the_model_forgets(policy: str, script: list[tuple[Any, float]]) -> None:
    clock, model = VirtualClock(), Model(policy)
    pool = make_pool(EngineConfig(**POLICIES[policy]), ROOM, clock)
    open_: list[tuple[list[bytes], list[int]]] = []
    for event, seconds in script:
        clock.advance(seconds)
        if isinstance(event, int):
            if event < len(open_):
                names, table = open_.pop(event)
                pool.release(table)
                model.end(names, clock.now())
        else:
            names = [bytes([event[0], i]) for i in range(event[1])]
            table = []
            pool.expire(clock.now())
            for name in names:
                if (block_id := pool.find(name)) is None:
                    break
                table.append(block_id)
            num_found = model.find(names, clock.now())
            assert len(table) == num_found
            if len(names) - num_found + sum(not pool.ref_counts[block_id] for block_id in table) > pool.num_free:
                continue
            pool.share(table)
            table += pool.allocate(len(names) - num_found)
            open_.append((model.begin(names, num_found), table))
            for block_id, name in list(zip(table, names))[num_found:]:
                pool.register(block_id, name)
        check_pool(pool, [table for _, table in open_])
        assert [pool.hashes[block_id] for block_id in pool.free if pool.hashes[block_id]] == model.cached


def test_a_block_that_was_forgotten_is_born_again() -> None:
    pool = make_pool(EngineConfig(**POLICIES["fifo"]), 2, VirtualClock())
    first, second = pool.allocate(2)
    for name, block_id in ((b"a", first), (b"b", second)):
        pool.register(block_id, name)
        pool.release([block_id])
    pool.forget([first])
    assert pool.allocate(1) == [first]
    pool.register(first, b"c")
    pool.release([first])
    assert pool.allocate(1) == [second], "c is younger than b"


class TickingClock(VirtualClock):
    """Time goes on between any two looks at it."""

    def now(self) -> float:
        self.advance(1e-6)
        return super().now()


def test_a_prefix_does_not_expire_between_a_lookup_and_its_use() -> None:
    """Three cached blocks reach their age about when a request that wants them is admitted."""
    found = []
    for early in range(10):
        clock = TickingClock()
        pool = make_pool(EngineConfig(**POLICIES["ttl"]), 8, clock)
        scheduler = Scheduler(SchedulerConfig(max_model_len=64), BlockManager(8, 4, pool=pool))
        first, again = (Request(name, list(range(13)), SamplingParams(), Timeline(0.0)) for name in ("first", "again"))
        scheduler.add(first)
        scheduler.schedule(clock.now())
        scheduler.finish(first, FinishReason.ABORT)
        clock.advance(TTL_S - early * 1e-6)
        scheduler.add(again)
        scheduler.schedule(clock.now())
        check_scheduler(scheduler)
        found.append(again.num_cached_tokens)
    assert set(found) == {0, 12} and found == sorted(found), "all three or none"


@pytest.mark.parametrize("simulated", [False, True])
def test_the_engine_obeys_and_so_does_the_simulator(simulated: bool) -> None:
    """Room for two prompts. The first comes again before a third needs room, then once more, then after a pause."""
    found = {}
    for policy, fields in POLICIES.items():
        clock, sizes = VirtualClock(), {"num_kv_blocks": 9, "block_size": 4}
        if simulated:
            engine = Deployment.of("qwen3-1.7b", "l4", **sizes, **fields).fast_engine(clock)
        else:
            engine = Engine.on_runner(EngineConfig(max_model_len=40, **sizes, **fields), FakeRunner(9, 4, clock), clock)
        hits = []
        for first, pause in ((0, 0), (100, 0), (0, 0), (200, 0), (0, 0), (0, TTL_S + 1), (0, TTL_S - 1)):
            clock.advance(pause)
            engine.add_request(list(range(first, first + 17)), greedy(1), stream=False)
            [output] = drain(engine).values()
            hits.append(output.num_cached_tokens)
        found[policy] = hits
        assert (engine.scheduler.prefix_queries, engine.scheduler.prefix_hits) == (7 * 17, sum(hits))
    assert found == {
        "lru": [0, 0, 16, 0, 16, 16, 16],
        "fifo": [0, 0, 16, 0, 0, 16, 16],
        "ttl": [0, 0, 16, 0, 16, 0, 16],
    }

"""Which cached prefix is evicted first: beside the core's LRU, first in first out, and a time to live."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count, takewhile

from minillm.core.block_pool import BlockPool, FreeBlocks
from minillm.core.timeline import Clock
from minillm.policies.config import EngineConfig


class FirstInFirstOut(FreeBlocks):
    """The oldest cached block goes first, and a hit makes none younger.

    A block's age counts from the moment when the request that computed it let go of it: before, it can't be evicted.
    So a sequence's tail still goes before its head. O(log n) for each block.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._births = count()
        self._born: dict[int, int] = {}
        """Birth, a count, of each block that caches a prefix and was free before, also while it is held."""
        self._oldest_first: list[tuple[int, int]] = []
        """A heap of (birth, block): all that are free, some that are held, and births of what was forgotten since."""
        self._listed: dict[int, int] = {}
        """Block -> its latest birth in the heap."""

    def __iter__(self) -> Iterator[int]:
        yield from reversed(self.plain)
        yield from sorted(self.cached, key=self._born.__getitem__)

    def add(self, block_ids: Sequence[int], hashes: Sequence[bytes | None]) -> None:
        super().add(block_ids, hashes)
        for block_id in block_ids:
            if hashes[block_id] is None:
                self._born.pop(block_id, None)
                continue
            birth = self._born.setdefault(block_id, next(self._births))
            if self._listed.get(block_id) != birth:
                self._listed[block_id] = birth
                heapq.heappush(self._oldest_first, (birth, block_id))

    def take(self, count: int) -> tuple[list[int], list[int]]:
        plain, _ = super().take(min(count, len(self.plain)))
        return plain, [self._evict() for _ in range(count - len(plain))]

    def _evict(self) -> int:
        while True:
            birth, block_id = heapq.heappop(self._oldest_first)
            if self._listed[block_id] == birth:
                del self._listed[block_id]
            if block_id in self.cached and self._born[block_id] == birth:
                del self.cached[block_id], self._born[block_id]
                return block_id


class TimeToLive(BlockPool):
    """LRU, and a block that no request has held for longer than `ttl_s` seconds is found no more.

    Each step begins by forgetting all that have expired, so nothing runs beside the scheduler; until then they count as
    cached.
    """

    def __init__(self, num_blocks: int, ttl_s: float, clock: Clock) -> None:
        super().__init__(num_blocks)
        self._ttl_s, self._clock = ttl_s, clock
        self._last_held = [0.0] * num_blocks
        """When a request last let go of each block, clock seconds."""

    def release(self, block_ids: Sequence[int]) -> None:
        super().release(block_ids)
        now = self._clock.now()
        for block_id in block_ids:
            self._last_held[block_id] = now

    def expire(self, now: float) -> None:
        limit = now - self._ttl_s
        self.forget(list(takewhile(lambda block_id: self._last_held[block_id] < limit, self.free.cached)))


def make_pool(config: EngineConfig, num_blocks: int, clock: Clock) -> BlockPool:
    """The block pool that a configuration asks for."""
    if config.prefix_eviction == "ttl":
        return TimeToLive(num_blocks, config.prefix_ttl_s, clock)
    return BlockPool(num_blocks, FirstInFirstOut(num_blocks) if config.prefix_eviction == "fifo" else None)

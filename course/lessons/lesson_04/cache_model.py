"""A prefix cache in sixty lines: who is forgotten when room is short?

The engine's own: minillm/core/block_pool.py and minillm/policies/eviction.py. This model serves one request after the
other; the lesson checks on a run that its LRU and FIFO find what the engine finds.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from course.lessons.lesson_04.traces import Visit


@dataclass(frozen=True)
class Policy:
    """Two questions make a policy."""

    renews: bool
    """Does a hit make a block young again?"""
    limit_s: float = math.inf
    """At what age is a block forgotten, though no request needs its room? Seconds."""


LRU, FIFO = Policy(renews=True), Policy(renews=False)
UNLIMITED = 10**9
"""Blocks of a cache that never forgets: what it finds is the ceiling for every policy."""


class PrefixCache:
    """`num_blocks` blocks. `serve` one visit after the other, in order of time."""

    def __init__(self, num_blocks: int, policy: Policy = LRU) -> None:
        self.policy = policy
        self.num_empty = num_blocks
        """Blocks that hold nothing that can be found."""
        self.stamps: OrderedDict[bytes, float] = OrderedDict()
        """Hash of a cached block -> when it was young. Oldest first: they go first."""

    def serve(self, visit: Visit) -> int:
        """Compute a request. Returns how many of its blocks were found.

        Raises:
            ValueError: it needs more blocks than there are.
        """
        self._forget_old(visit.when)
        found = self._find(visit)
        start, held, new = found, set(visit.names[:found]), set[bytes]()
        for end in range(visit.longest + 1, visit.num_blocks + 1):  # the prompt's at once, then one by one
            for _ in range(start, end):
                self._take_one(held)
            new |= {name for name in visit.names[start:end] if name not in self.stamps}
            start = end
        # A block without a name, or with one that is there already, can't be found.
        self.num_empty += visit.num_blocks - found - len(new)
        for name in reversed(visit.names):  # the end of a prompt is older than its beginning, so it goes first
            if name in new or (name in held and self.policy.renews):
                self.stamps[name] = visit.when
                self.stamps.move_to_end(name)
        return found

    def _find(self, visit: Visit) -> int:
        """The leading blocks that are cached. One token is always computed: there is no answer without."""
        for i, name in enumerate(visit.names[: visit.longest]):
            if name not in self.stamps:
                return i
        return min(len(visit.names), visit.longest)

    def _take_one(self, held: set[bytes]) -> None:
        if self.num_empty:
            self.num_empty -= 1
            return
        oldest = next((name for name in self.stamps if name not in held), None)
        if oldest is None:
            raise ValueError("this cache is smaller than one request: give it more blocks")
        del self.stamps[oldest]

    def _forget_old(self, now: float) -> None:
        while self.stamps and now - next(iter(self.stamps.values())) > self.policy.limit_s:
            self.stamps.popitem(last=False)
            self.num_empty += 1


def replay(trace: Iterable[Visit], num_blocks: int = UNLIMITED, policy: Policy = LRU) -> list[int]:
    """Blocks found at each visit of a trace, from a cold start."""
    return list(map(PrefixCache(num_blocks, policy).serve, trace))


def hit_rate(trace: list[Visit], num_blocks: int = UNLIMITED, policy: Policy = LRU) -> float:
    """Prompt tokens found / prompt tokens looked up."""
    found = sum(blocks * v.block_size for blocks, v in zip(replay(trace, num_blocks, policy), trace))
    return found / sum(visit.num_prompt_tokens for visit in trace)

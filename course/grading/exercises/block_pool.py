"""A pool of KV blocks with reference counts."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Mistake, expect, listed, number, refused, whole

POOLS, TURNS = (4_000, 32_000, 500_000), 60
"""Sizes of pools, in blocks, and how often each operation is asked of them."""


class WatchedPool:
    """A learner's pool, and beside it what the counts must be. Raises Mistake at the first difference."""

    def __init__(self, make: Callable[[int], Any], size: int) -> None:
        self.pool = make(size)
        self.size = size
        self.counts = [0] * size

    @property
    def free(self) -> int:
        return self.counts.count(0)

    def num_free(self) -> int:
        value = getattr(self.pool, "num_free", None)
        expect(not callable(value), "`num_free` is a method in your pool: it should be an attribute or a property")
        return whole(value, "num_free")

    def look(self, after: str) -> None:
        found = self.num_free()
        if found != self.free:
            slip = "leaked_block" if found < self.free else "freed_too_early"
            raise Mistake(f"after {after}: num_free is {found}, expected {self.free}", slip=slip)

    def allocate(self, count: int) -> list[int]:
        found = [whole(b, "a block id") for b in listed(self.pool.allocate(count), f"allocate({count})", count)]
        for block in found:
            if not 0 <= block < self.size:
                raise Mistake(f"allocate({count}) gave block {block}: a pool of {self.size} has 0 to {self.size - 1}")
            if self.counts[block] > 0:
                raise Mistake("allocated_block_in_use", count=count, block=block, count_held=self.counts[block])
            self.counts[block] += 1
        expect(len(set(found)) >= count, "allocated_block_twice", count=count, found=found)
        self.look(f"allocate({count})")
        return found

    def share(self, blocks: Sequence[int]) -> None:
        self.pool.share(list(blocks))
        for block in blocks:
            self.counts[block] += 1
        self.look(f"share({list(blocks)})")

    def release(self, blocks: Sequence[int]) -> None:
        self.pool.release(list(blocks))
        for block in blocks:
            self.counts[block] -= 1
        self.look(f"release({list(blocks)})")

    def refuses(self, error: type[Exception], name: str, value: Any, when: str, why: str) -> None:
        """The pool must raise this error and be as it was."""
        what = f"{name}({value}){when}"
        refused(error, what, why, lambda: getattr(self.pool, name)(value))
        self.look(f"{what}, which was refused,")


def hands_out(answer: Answer, rng: random.Random) -> str:
    size = rng.randint(5, 9)
    watched = WatchedPool(answer.BlockPool, size)
    watched.look("making the pool")
    held = watched.allocate(2)
    listed(watched.allocate(0), "allocate(0)", 0)
    watched.release(watched.allocate(2))
    watched.allocate(watched.free)  # exactly all that are left
    watched.release(held)
    return f"{size} blocks, each once, down to the last"


def counts_holders(answer: Answer, rng: random.Random) -> None:
    for _ in range(6):
        watched = WatchedPool(answer.BlockPool, rng.randint(3, 12))
        tables: list[list[int]] = []
        for _ in range(120):
            act = rng.choice(("allocate", "share", "release"))
            if act == "allocate" and watched.free:
                tables.append(watched.allocate(rng.randint(1, watched.free)))
            elif act == "share" and tables and len(tables) < 8:
                table = rng.choice(tables)
                tables.append(table[: rng.randint(1, len(table))])
                watched.share(tables[-1])
            elif tables:
                watched.release(tables.pop(rng.randrange(len(tables))))
        for table in tables:
            watched.release(table)
        watched.allocate(watched.size)


def refuses_too_many(answer: Answer, rng: random.Random) -> None:
    size = rng.randint(3, 8)
    watched = WatchedPool(answer.BlockPool, size)
    for held in (0, size - 1):
        watched.allocate(held)
        free = watched.free
        watched.refuses(IndexError, "allocate", free + 1, f" with {free} free", "too few are free")
        watched.allocate(watched.free)  # those that were free still are: nothing was lost on the way
        watched.release([block for block in range(size) if watched.counts[block]])


def refuses_nonsense(answer: Answer, rng: random.Random) -> None:
    for b in (0, rng.randint(1, 3)):  # block 0 is one like all others
        watched = WatchedPool(answer.BlockPool, rng.randint(4, 8))
        a, c, *rest = (block for block in watched.allocate(watched.size) if block != b)
        watched.release([b, *rest])
        free = f"the reference count of block {b} is 0"
        for together in ([b], [a, b], [b, a], [a, b, c], [a, c, b]):
            for name in ("release", "share"):
                why = f"{free}, and nothing may be done by halves"
                watched.refuses(ValueError, name, together, f", of which {b} is free", why)
        watched.release([a])  # it was neither let go nor shared above
        watched.refuses(ValueError, "release", [a], " after its only release", "no one holds it")
        watched.allocate(watched.free)
        watched.release([c])


def on_their_own(answer: Answer, rng: random.Random) -> None:
    def look(pool: WatchedPool, after: str) -> None:
        try:
            pool.look(after)
        except Mistake as mistake:
            raise Mistake(mistake.feedback, slip="state_shared_between_pools", **mistake.fields) from None

    first, second = WatchedPool(answer.BlockPool, 6), WatchedPool(answer.BlockPool, 4)
    first.allocate(3)
    look(second, "allocate in ANOTHER pool")
    second.allocate(4)
    look(first, "allocate in ANOTHER pool")
    look(WatchedPool(answer.BlockPool, 6), "use of ANOTHER pool")


def stays_quick(answer: Answer, rng: random.Random) -> None:
    def giving_a_fifth(size: int) -> WorkCost:
        pool = answer.BlockPool(size)
        return cost_of(lambda: answer.many(pool, "allocate", [[size // 100]] * 20), size // 5)

    def operations(size: int) -> WorkCost:
        pool = answer.BlockPool(size)
        pool.allocate(size // 5)

        def turns() -> None:
            for _ in range(TURNS):
                pair = list(pool.allocate(2))
                pool.share(pair)
                pool.release(pair)
                pool.release(pair)
                number(pool.num_free, "num_free")

        return cost_of(turns, 5 * TURNS)

    for work in (giving_a_fifth, operations):
        hold_steady(work, POOLS, "pool_too_slow")

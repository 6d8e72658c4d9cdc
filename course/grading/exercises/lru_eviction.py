"""Eviction order of free cached blocks: least recently used first, of one request the end of its chain first."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Mistake, each, expect, hold_acts, listed, refused, whole

RULE = "least recently released first, and of one release its last block first"
BLOCKS, TURNS = (1_000, 8_000, 64_000), 50
"""Blocks in an order, and how often each operation is asked of it."""

Act = tuple[str, Any]
"""("release", block ids), ("revive", a block id), ("evict", how many)"""


class RightOrder:
    """The oracle: a plain list, the next to go first."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def release(self, block_ids: list[int]) -> None:
        self.order += block_ids[::-1]

    def revive(self, block_id: int) -> None:
        self.order.remove(block_id)

    def evict(self, count: int) -> list[int]:
        gone, self.order = self.order[:count], self.order[count:]
        return gone


class WithPriority(RightOrder):
    """The lowest go first: of (moment and depth of the first release, moment of the last, depth in it, number)."""

    def __init__(self, priority: Callable[[tuple[int, int], int, int, int], tuple[int, ...]]) -> None:
        super().__init__()
        self.priority, self.clock = priority, itertools.count()
        self.first: dict[int, tuple[int, int]] = {}
        self.keys: dict[int, tuple[int, ...]] = {}

    def release(self, block_ids: list[int]) -> None:
        now = next(self.clock)
        for depth, block in enumerate(block_ids):
            self.keys[block] = self.priority(self.first.setdefault(block, (now, -depth)), now, depth, block)
        self.order = sorted([*self.order, *block_ids], key=lambda block: self.keys[block])

    def evict(self, count: int) -> list[int]:
        gone = super().evict(count)
        for block in gone:
            del self.first[block]  # what it caches from now on is new
        return gone


class StaysWhenRevived(RightOrder):
    def revive(self, block_id: int) -> None:
        self.order.append(self.order.pop(self.order.index(block_id)))

    def release(self, block_ids: list[int]) -> None:
        self.order = [block for block in self.order if block not in block_ids] + block_ids[::-1]


class Reversed(RightOrder):
    def evict(self, count: int) -> list[int]:
        return super().evict(count)[::-1]


SLIPS: dict[str, Callable[[], RightOrder]] = {
    "head_of_chain_first": lambda: WithPriority(lambda first, last, depth, block: (last, depth)),
    "most_recently_used_first": lambda: WithPriority(lambda first, last, depth, block: (-last, depth)),
    "first_release_counts": lambda: WithPriority(lambda first, last, depth, block: first),
    "evicted_block_in_use": StaysWhenRevived,
    "ordered_by_number": lambda: WithPriority(lambda first, last, depth, block: (block,)),
    "ordered_by_number_within_release": lambda: WithPriority(lambda first, last, depth, block: (last, block)),
    "gave_last_first": Reversed,
    "deepest_first": lambda: WithPriority(lambda first, last, depth, block: (-depth, last)),
}


def some_acts(rng: random.Random, count: int, reviving: bool = True) -> list[Act]:
    """A history in which the evictions come late and nothing evicted comes back: it makes sense for a wrong order, too,
    so that the mistake can be told by what it gives."""
    outside, right, acts = rng.sample(range(900), 300), RightOrder(), []
    for _ in range(count):
        if right.order and reviving and rng.random() < 0.5:
            block = rng.choice(right.order)
            right.revive(block)
            outside.append(block)
            acts.append(("revive", block))
        if rng.random() < 0.5:
            outside[-4:] = rng.sample(outside[-4:], 4)
            acts.append(("release", [outside.pop() for _ in range(rng.randint(1, 5))]))
            right.release(acts[-1][1])
    new = [outside.pop(0) for _ in range(3)]
    left = len(right.order)
    return [*acts, ("evict", left // 3), ("release", new), ("evict", left - left // 3 + 3)]


def wild_acts(rng: random.Random, count: int) -> list[Act]:
    """A history of a small pool: what was evicted soon caches something else."""
    outside, right, acts = list(range(30)), RightOrder(), []
    for _ in range(count):
        kind = rng.choice(("release", "release", "revive", "evict"))
        if kind == "revive" and right.order:
            outside.append(rng.choice(right.order))
            right.revive(outside[-1])
            acts.append(("revive", outside[-1]))
        elif kind == "evict" and len(right.order) > 5:
            acts.append(("evict", rng.randint(1, 3)))
            outside += right.evict(acts[-1][1])
        elif len(outside) > 5:
            rng.shuffle(outside)
            acts.append(("release", [outside.pop() for _ in range(rng.randint(1, 5))]))
            right.release(acts[-1][1])
    return [*acts, ("evict", len(right.order))]


def judge_acts(answer: Answer, histories: list[list[Act]]) -> None:
    acts = [[(name, [value]) for name, value in history] for history in histories]
    reads = {"evict": each(whole)}
    hold_acts(answer, answer.EvictionOrder, acts, RightOrder, SLIPS, reads, otherwise=lambda *_: RULE)


def goes_first(answer: Answer, rng: random.Random) -> None:
    ids = rng.sample(range(90), 40)
    short = [("release", ids[:4]), ("release", ids[4:6]), ("evict", 3), ("release", ids[6:9]), ("evict", 6)]
    judge_acts(answer, [[("release", ids), ("evict", 40)], short, *[some_acts(rng, 12, False) for _ in range(8)]])


def revives(answer: Answer, rng: random.Random) -> None:
    a, b, c, d = rng.sample(range(90), 4)
    back = [("release", [a, b]), ("release", [c, d]), ("revive", a), ("release", [a]), ("evict", 4)]
    gone = [("release", [a, b, c]), ("revive", b), ("evict", 2), ("release", [b, d]), ("evict", 2)]
    judge_acts(answer, [back, gone, *[some_acts(rng, 40) for _ in range(12)]])
    judge_acts(answer, [wild_acts(rng, 60) for _ in range(8)])


def counts(answer: Answer, rng: random.Random) -> None:
    order = answer.EvictionOrder()
    ids = rng.sample(range(50), 6)
    steps = [("release", ids, 6), ("revive", ids[2], 5), ("evict", 2, 3), ("evict", 0, 3), ("release", [], 3)]
    for name, value, wanted in [("", None, 0), *steps, ("evict", 3, 0)]:
        what = f"{name}({value})" if name else "making it"
        gone = getattr(order, name)(value) if name else None
        if name == "evict":
            listed(gone, what, value)
        found = whole(len(order), "len(order)")
        expect(found == wanted, "wrong_length", what=what, found=found, wanted=wanted)
    other = answer.EvictionOrder()
    other.release(ids)
    expect(
        not (len(order) != 0 or sorted(listed(other.evict(6), "evict(6)", 6)) != sorted(ids)), "shared_state_or_list"
    )


def refuses(answer: Answer, rng: random.Random) -> None:
    ids = rng.sample(range(50), 7)
    for what, error, why in (
        ("evict", IndexError, "only 4 are there"),
        ("revive", KeyError, "it is not there"),
        ("release", ValueError, "one of them is there already"),
    ):
        order = answer.EvictionOrder()
        order.release(ids[:5])
        order.revive(ids[1])
        value: Any = {"evict": 5, "revive": ids[1], "release": [ids[5], ids[0], ids[6]]}[what]
        about = f"after release({ids[:5]}), revive({ids[1]}): {what}({value})"
        refused(error, about, why, lambda order=order, what=what, value=value: getattr(order, what)(value))
        left = whole(len(order), "len(order)")
        rest = sorted([ids[4], ids[3], ids[2], ids[0]])
        if left != 4 or sorted(listed(order.evict(4), "evict(4)")) != rest:
            raise Mistake(f"{about} was refused, and something changed all the same. Look first, then change", 0.3)


def stays_quick(answer: Answer, rng: random.Random) -> None:
    def filling(size: int) -> WorkCost:
        order = answer.EvictionOrder()
        releases = [[list(range(first, first + 50))] for first in range(0, size, 50)]
        return cost_of(lambda: answer.many(order, "release", releases), size)

    def operations(size: int) -> WorkCost:
        order = answer.EvictionOrder()
        order.release(list(range(size)))
        blocks = rng.sample(range(size // 2), TURNS)  # those that go last: none of them was evicted before
        acts = [act for b in blocks for act in (("revive", [b]), ("release", [[b]]), ("evict", [5]))]
        gone: list[Any] = []
        cost = cost_of(lambda: gone.extend(answer.play(order, acts)[2::3]), 3 * TURNS)
        for evicted in gone:
            listed(evicted, "evict(5)", 5)
        return cost

    for work in (filling, operations):
        hold_steady(work, BLOCKS, "operation_too_slow")

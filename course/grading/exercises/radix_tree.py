"""A radix tree over token ids: the longest cached prefix, each shared token once, the least recently used end goes first."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Acts, Answer, broken, expect, hold_acts, whole

Act = tuple[str, Any]
"""("insert", tokens), ("match", tokens), ("evict", how many)"""
SEQUENCES, TAIL, ASKED = (25, 200, 4_000), 10, 400
"""How many sequences a tree holds; the tokens that one has in common with all others, and of its own; and how many of them
are asked for."""


class Trie:
    """The oracle: a set of prefixes, each with the moment of its last use. Its attributes are the usual mistakes."""

    match_is_use = insert_is_use = True
    newest_first = front = shared_too = False
    past_the_match = False

    def __init__(self) -> None:
        self.used: dict[tuple[int, ...], int] = {}
        self.now = 0

    @property
    def num_tokens(self) -> int:
        return len(self.used)

    def _found(self, tokens: list[int]) -> int:
        return next((n for n in range(len(tokens)) if tuple(tokens[: n + 1]) not in self.used), len(tokens))

    def _use(self, tokens: list[int]) -> None:
        self.now += 1
        for n in range(len(tokens)):
            self.used[tuple(tokens[: n + 1])] = self.now

    def insert(self, tokens: list[int]) -> int:
        found = self._found(tokens)
        if found < len(tokens) or self.insert_is_use:
            self._use(tokens)
        return len(tokens) - found

    def match(self, tokens: list[int]) -> int:
        found = self._found(tokens)
        if self.match_is_use:
            self._use(tokens[:found])
            if self.past_the_match and found:
                for prefix in [each for each in self.used if list(each[:found]) == tokens[:found]]:
                    self.used[prefix] = self.now
        return found

    def evict(self, count: int) -> int:
        count = min(count, len(self.used))
        for _ in range(count):
            inner = {prefix[:-1] for prefix in self.used}
            free = self.used if self.front or self.shared_too else [each for each in self.used if each not in inner]
            sign = -1 if self.newest_first else 1
            depth = 1 if self.front else -1
            del self.used[min(free, key=lambda each: (sign * self.used[each], depth * len(each)))]
        return count


def with_fault(**faults: bool) -> Callable[[], Trie]:
    return type("Faulty", (Trie,), faults)


SLIPS = broken(__file__, with_fault)
"""Whose tokens go; `kind_of_act` knows the other mistakes by the first act with a wrong result."""


def judge_acts(answer: Answer, histories: list[list[Act]]) -> None:
    """What each act gives, and num_tokens behind it."""
    acts = [
        [each for name, value in history for each in ((name, [value]), ("num_tokens", None))] for history in histories
    ]
    reads = dict.fromkeys(("insert", "match", "evict", "num_tokens"), whole)
    hold_acts(answer, answer.RadixTree, acts, Trie, SLIPS, reads, kind_of_act)


def kind_of_act(acts: Acts, i: int, found: list[int], wanted: list[int]) -> str:
    """What the first wrong result is about; names a text."""
    name, arguments = acts[i]
    if arguments is None:
        if acts[i - 1][0] != "evict":
            return "counted_shared_twice"
        before = found[i - 2] if i > 1 else 0
        return "num_tokens_not_reduced" if found[i] == before else "num_tokens_reduced_by_count"
    if name == "evict":
        return "evict_gave_rest" if found[i] == found[i + 1] else "evicted_whole_leaf"
    if any(before == "evict" for before, _ in acts[:i]):
        return "evicted_wrong_tokens"
    if name == "insert":
        return "insert_counted_found" if found[i] == len(arguments[0]) - wanted[i] else "insert_counted_all"
    return "matched_in_the_middle" if found[i] > wanted[i] else "matched_whole_edges_only"


def some_sequence(rng: random.Random, known: list[list[int]]) -> list[int]:
    """Often one that begins like another, and parts from it anywhere."""
    start = rng.choice(known) if known and rng.random() < 0.8 else []
    tail = [rng.choice((0, 1, 11, 111)) for _ in range(rng.randint(0 if start else 1, 4))]
    return [*start[: rng.randint(1, len(start))], *tail] if start else tail


def some_acts(rng: random.Random, count: int, evictions: float = 0.0) -> list[Act]:
    known, acts = [], []
    for _ in range(count):
        tokens = some_sequence(rng, known)
        if rng.random() < evictions:
            acts.append(("evict", rng.randint(0, 5)))
        elif rng.random() < 0.5:
            acts.append(("insert", tokens))
            known.append(tokens)
        else:
            acts.append(("match", tokens))
    return acts


def spelled(rng: random.Random, histories: Sequence[str]) -> list[list[Act]]:
    """Histories such as "insert abc, evict 1, match -": a letter is a token, the dash stands for none."""
    acts = [[act.split() for act in each.split(", ")] for each in histories]
    letters = sorted({letter for each in acts for _, what in each for letter in what if letter.isalpha()})
    tokens = dict(zip(letters, rng.sample(range(50_000), len(letters))))

    def value(what: str) -> Any:
        return int(what) if what.isdigit() else [tokens[letter] for letter in what if letter in tokens]

    return [[(name, value(what)) for name, what in each] for each in acts]


def matches(answer: Answer, rng: random.Random, histories: Sequence[str]) -> None:
    judge_acts(answer, spelled(rng, histories))
    judge_acts(answer, [some_acts(rng, 14) for _ in range(10)])


def counts(answer: Answer, rng: random.Random, histories: Sequence[str]) -> None:
    judge_acts(answer, [*spelled(rng, histories), *[some_acts(rng, 20) for _ in range(8)]])


def evicts(answer: Answer, rng: random.Random, histories: Sequence[str]) -> None:
    judge_acts(answer, spelled(rng, histories))
    for _ in range(8):
        acts = some_acts(rng, 16)
        probes = [("match", value) for name, value in acts if name == "insert"]
        judge_acts(answer, [[*acts, ("evict", rng.randint(1, 4)), *probes]])


def mixed(answer: Answer, rng: random.Random) -> None:
    judge_acts(answer, [some_acts(rng, 60, evictions=0.2) for _ in range(10)])


def on_their_own(answer: Answer, rng: random.Random) -> None:
    first, second = answer.RadixTree(), answer.RadixTree()
    tokens = [rng.randrange(100) for _ in range(5)]
    first.insert(list(tokens))
    found = whole(second.match(list(tokens)), "match(...)")
    expect(found == 0 and second.num_tokens == 0, "two trees: what was inserted into one is found in the other")
    expect(whole(first.match(list(tokens)), "match(...)") == 5, "what was inserted is not found any more")


def stays_quick(answer: Answer, rng: random.Random) -> None:
    shared = [rng.randrange(1000) for _ in range(TAIL)]

    def some_sequences(size: int) -> list[list[int]]:
        return [[*shared, i, *rng.choices(range(1000), k=TAIL)] for i in range(size)]

    def inserting(size: int) -> WorkCost:
        tree, sequences = answer.RadixTree(), some_sequences(size)
        return cost_of(lambda: answer.many(tree, "insert", [[each] for each in sequences]), size)

    def matching(size: int) -> WorkCost:
        tree, sequences = answer.RadixTree(), some_sequences(size)
        answer.many(tree, "insert", [[each] for each in sequences])
        asked, found = [rng.choice(sequences) for _ in range(ASKED)], []
        cost = cost_of(lambda: found.extend(answer.many(tree, "match", [[each] for each in asked])), ASKED)
        whole_ones = [2 * TAIL + 1] * ASKED
        expect(found == whole_ones, "in a large tree, a sequence that was inserted is not found whole")
        return cost

    for work, operation in ((inserting, "insert()"), (matching, "match()")):
        hold_steady(work, SEQUENCES, "tree_too_slow", operation=operation)

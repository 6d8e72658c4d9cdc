"""A prompt as KV blocks, what a prefix cache is asked request by request, and a model of such a cache.

The engine's own: minillm/core/block_pool.py and minillm/policies/eviction.py. The model serves one request after the
other; lesson 04 checks on a run that its LRU and FIFO find what the engine finds.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.workloads import LabWorkload, PromptArrival
from course.simulator.workload.requests import Piece, prompt_token_ids
from minillm.core.block_pool import ROOT, block_hashes
from minillm.core.brief import brief

# ---------------------------------------------------------------- a prompt as blocks


@dataclass(frozen=True)
class PromptBlock:
    """A full block of tokens."""

    text: str
    name: bytes
    """Its hash: of these tokens and of all before them."""


@dataclass(frozen=True)
class Chain:
    """One prompt as blocks."""

    blocks: tuple[PromptBlock, ...]
    tail: str
    """What is left over at the end and fills no block: it cannot be found again."""
    num_tokens: int

    __repr__ = brief

    def found_after(self, earlier: "Chain") -> int:
        """Blocks of this prompt that are there when `earlier` has been computed."""
        known = {block.name for block in earlier.blocks}
        found = 0
        for block in self.blocks:
            if block.name not in known:
                break
            found += 1
        return found


def token_ids(lab: Lab, text: str) -> list[int]:
    return lab.tokenizer(text)["input_ids"]


def count_tokens(lab: Lab, text: str) -> int:
    return len(token_ids(lab, text))


def chain_of(lab: Lab, text: str, block_size: int) -> Chain:
    """The chain of a prompt, in blocks of `block_size` tokens."""
    ids = token_ids(lab, text)
    full = len(ids) // block_size * block_size
    pieces = [ids[i : i + block_size] for i in range(0, full, block_size)]
    texts = [lab.tokenizer.decode(piece) for piece in pieces]
    names = block_hashes(ROOT, ids, block_size)
    return Chain(tuple(map(PromptBlock, texts, names)), lab.tokenizer.decode(ids[full:]), len(ids))


def names_of(ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """The hashes of the full blocks of these tokens."""
    return tuple(block_hashes(ROOT, ids, block_size))


def block_size_of(lab: Lab) -> int:
    """Tokens per block on this machine: the attention backend's choice. A request of one token tells."""
    return lab.run(LabWorkload("one token", "", (PromptArrival(0.0, "Hello", 1),))).snapshot.block_size


# ---------------------------------------------------------------- what a cache is asked

TRACE_BLOCK = 16
"""Tokens per block of made traces: vLLM's default."""


@dataclass(frozen=True)
class CacheRequest:
    """One request, as its blocks."""

    when: float
    """Seconds after the start."""
    who: str
    names: tuple[bytes, ...]
    """Hashes of its full blocks, prompt and answer."""
    num_prompt_tokens: int
    num_blocks: int
    """What it needs, the last one perhaps not full."""
    block_size: int

    @property
    def longest(self) -> int:
        """Blocks of the longest prefix that may be found: one token of the prompt is left to compute."""
        return (self.num_prompt_tokens - 1) // self.block_size


def cache_request(when: float, who: str, prompt: Sequence[int], answer: Sequence[int], block_size: int) -> CacheRequest:
    """A request by its tokens. The last token of an answer is never computed: nothing follows it."""
    computed = [*prompt, *answer[:-1]]
    num_blocks = -(-len(computed) // block_size)
    return CacheRequest(when, who, names_of(computed, block_size), len(prompt), num_blocks, block_size)


def trace_of(run: Run) -> list[CacheRequest]:
    """What a run of the real engine asked of its cache, in order of arrival."""
    outputs = sorted(run.outputs, key=lambda output: output.timeline.arrival)
    size = run.snapshot.block_size
    return [
        cache_request(o.timeline.arrival - run.start, o.request_id, o.prompt_token_ids, o.token_ids, size)
        for o in outputs
    ]


def trace_of_prompts(lab: Lab, prompts: Iterable[str], block_size: int) -> list[CacheRequest]:
    """Prompts that come one second apart and are not answered."""
    return [cache_request(float(i), str(i), token_ids(lab, prompt), (), block_size) for i, prompt in enumerate(prompts)]


def users_trace(
    count: int = 8, turns: int = 6, gap_s: float = 180.0, *, system: int = 400, message: int = 200, seed: int = 0
) -> list[CacheRequest]:
    """Conversations of several users, mixed in time: each turn repeats what came before and adds a message.

    Args:
        gap_s: mean time between two turns of a user, exponential, seconds.
        system: tokens that all users share at the start.
        message: tokens that each turn adds, of which the answer to it is a third.
    """
    rng = random.Random(f"{count}/{turns}/{seed}")
    draws = [[rng.expovariate(1.0) for _ in range(turns)] for _ in range(count)]
    requests = []
    for user, gaps in enumerate(draws):
        moment = gap_s * gaps[0] * 0.5
        for turn in range(turns):
            moment += gap_s * gaps[turn] if turn else 0.0
            requests.append(_turn(moment, user, turn, system, message))
    return sorted(requests, key=lambda each: each.when)


def _turn(moment: float, user: int, turn: int, system: int, message: int) -> CacheRequest:
    answer = message // 3
    pieces = [Piece("system", system)]
    for i in range(turn + 1):
        pieces += [Piece(f"user-{user}/message-{i}", message - answer), Piece(f"user-{user}/answer-{i}", answer)]
    prompt = prompt_token_ids(pieces[:-1], {})
    reply = prompt_token_ids(pieces[-1:], {})
    return cache_request(moment, f"user {user}", prompt, reply, TRACE_BLOCK)


def tenants_trace(
    count: int, rounds: int = 6, prefix: int = 1000, question: int = 40, in_turns: bool = True
) -> list[CacheRequest]:
    """Tenants with long system prompts, one after the other in turns, or at random."""
    rng = random.Random(f"{count}/{rounds}")
    requests = []
    for i in range(count * rounds):
        tenant = i % count if in_turns else rng.randrange(count)
        pieces = [Piece(f"tenant-{tenant}", prefix), Piece(f"question-{i}", question)]
        requests.append(cache_request(float(i), f"tenant {tenant}", prompt_token_ids(pieces, {}), (), TRACE_BLOCK))
    return requests


STAMPS = {"a second": 1, "a minute": 60, "an hour": 3600, "a day": 86400}
"""How coarse a time may be written, in seconds."""


def clocked_trace(coarse_s: int, count: int = 60, apart_s: float = 7.0, system: int = 1000) -> list[CacheRequest]:
    """One system prompt behind a clock that moves on every `coarse_s` seconds, asked every `apart_s` seconds."""
    requests = []
    for i in range(count):
        when = i * apart_s
        pieces = [Piece(f"clock-{when // coarse_s}", 12), Piece("system", system), Piece(f"question-{i}", 40)]
        requests.append(cache_request(when, str(i), prompt_token_ids(pieces, {}), (), TRACE_BLOCK))
    return requests


# ---------------------------------------------------------------- a model of a cache


@dataclass(frozen=True)
class CachePolicy:
    """Two questions make a policy."""

    renews: bool
    """Does a hit make a block young again?"""
    limit_s: float = math.inf
    """At what age is a block forgotten, though no request needs its room? Seconds."""


LRU, FIFO = CachePolicy(renews=True), CachePolicy(renews=False)
UNLIMITED = 10**9
"""Blocks of a cache that never forgets: what it finds is the ceiling for every policy."""


class PrefixCache:
    """`num_blocks` blocks. `serve` one request after the other, in order of time."""

    def __init__(self, num_blocks: int, policy: CachePolicy = LRU) -> None:
        self.policy = policy
        self.num_empty = num_blocks
        """Blocks that hold nothing that can be found."""
        self.stamps: OrderedDict[bytes, float] = OrderedDict()
        """Hash of a cached block -> when it was young. Oldest first: they go first."""

    def serve(self, request: CacheRequest) -> int:
        """Compute a request. Returns how many of its blocks were found.

        Raises:
            ValueError: it needs more blocks than there are.
        """
        self._forget_old(request.when)
        found = self._find(request)
        start, held, new = found, set(request.names[:found]), set[bytes]()
        for end in range(request.longest + 1, request.num_blocks + 1):  # the prompt's at once, then one by one
            for _ in range(start, end):
                self._take_one(held)
            new |= {name for name in request.names[start:end] if name not in self.stamps}
            start = end
        # A block without a name, or with one that is there already, can't be found.
        self.num_empty += request.num_blocks - found - len(new)
        for name in reversed(request.names):  # the end of a prompt is older than its beginning, so it goes first
            if name in new or (name in held and self.policy.renews):
                self.stamps[name] = request.when
                self.stamps.move_to_end(name)
        return found

    def _find(self, request: CacheRequest) -> int:
        """The leading blocks that are cached. One token is always computed: there is no answer without."""
        for i, name in enumerate(request.names[: request.longest]):
            if name not in self.stamps:
                return i
        return min(len(request.names), request.longest)

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


def replay_cache(trace: Iterable[CacheRequest], num_blocks: int = UNLIMITED, policy: CachePolicy = LRU) -> list[int]:
    """Blocks found at each request of a trace, from a cold start."""
    return list(map(PrefixCache(num_blocks, policy).serve, trace))


def model_hit_rate(trace: list[CacheRequest], num_blocks: int = UNLIMITED, policy: CachePolicy = LRU) -> float:
    """Prompt tokens found / prompt tokens looked up."""
    found = sum(blocks * v.block_size for blocks, v in zip(replay_cache(trace, num_blocks, policy), trace))
    return found / sum(request.num_prompt_tokens for request in trace)

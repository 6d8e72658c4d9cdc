"""What a prefix cache is asked, visit by visit: block hashes of real token ids, and when they come."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.run import Run
from course.lessons.lesson_04.chain import names_of, token_ids
from course.simulator.workload.requests import Piece, prompt_token_ids

BLOCK = 16
"""Tokens per block of made traces: vLLM's default."""


@dataclass(frozen=True)
class Visit:
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


def visit(when: float, who: str, prompt: Sequence[int], answer: Sequence[int], block_size: int) -> Visit:
    """A request by its tokens. The last token of an answer is never computed: nothing follows it."""
    computed = [*prompt, *answer[:-1]]
    num_blocks = -(-len(computed) // block_size)
    return Visit(when, who, names_of(computed, block_size), len(prompt), num_blocks, block_size)


def trace_of(run: Run) -> list[Visit]:
    """What a run of the real engine asked of its cache, in order of arrival."""
    outputs = sorted(run.outputs, key=lambda output: output.timeline.arrival)
    size = run.snapshot.block_size
    return [visit(o.timeline.arrival - run.start, o.request_id, o.prompt_token_ids, o.token_ids, size) for o in outputs]


def trace_of_prompts(lab: Lab, prompts: Iterable[str], block_size: int) -> list[Visit]:
    """Prompts that come one second apart and are not answered."""
    return [visit(float(i), str(i), token_ids(lab, prompt), (), block_size) for i, prompt in enumerate(prompts)]


def users(
    count: int = 8, turns: int = 6, gap_s: float = 180.0, *, system: int = 400, message: int = 200, seed: int = 0
) -> list[Visit]:
    """Conversations of several users, mixed in time: each turn repeats what came before and adds a message.

    Args:
        gap_s: mean time between two turns of a user, exponential, seconds.
        system: tokens that all users share at the start.
        message: tokens that each turn adds, of which the answer to it is a third.
    """
    rng = random.Random(f"{count}/{turns}/{seed}")
    draws = [[rng.expovariate(1.0) for _ in range(turns)] for _ in range(count)]
    visits = []
    for user, gaps in enumerate(draws):
        moment = gap_s * gaps[0] * 0.5
        for turn in range(turns):
            moment += gap_s * gaps[turn] if turn else 0.0
            visits.append(_turn(moment, user, turn, system, message))
    return sorted(visits, key=lambda each: each.when)


def _turn(moment: float, user: int, turn: int, system: int, message: int) -> Visit:
    answer = message // 3
    pieces = [Piece("system", system)]
    for i in range(turn + 1):
        pieces += [Piece(f"user-{user}/message-{i}", message - answer), Piece(f"user-{user}/answer-{i}", answer)]
    prompt = prompt_token_ids(pieces[:-1], {}).tolist()
    reply = prompt_token_ids(pieces[-1:], {}).tolist()
    return visit(moment, f"user {user}", prompt, reply, BLOCK)


def tenants(count: int, rounds: int = 6, prefix: int = 1000, question: int = 40, in_turns: bool = True) -> list[Visit]:
    """Tenants with long system prompts, one after the other in turns, or at random."""
    rng = random.Random(f"{count}/{rounds}")
    visits = []
    for i in range(count * rounds):
        tenant = i % count if in_turns else rng.randrange(count)
        pieces = [Piece(f"tenant-{tenant}", prefix), Piece(f"question-{i}", question)]
        visits.append(visit(float(i), f"tenant {tenant}", prompt_token_ids(pieces, {}).tolist(), (), BLOCK))
    return visits


STAMPS = {"a second": 1, "a minute": 60, "an hour": 3600, "a day": 86400}
"""How coarse a time may be written, in seconds."""


def clocked(coarse_s: int, count: int = 60, apart_s: float = 7.0, system: int = 1000) -> list[Visit]:
    """One system prompt behind a clock that moves on every `coarse_s` seconds, asked every `apart_s` seconds."""
    visits = []
    for i in range(count):
        when = i * apart_s
        pieces = [Piece(f"clock-{when // coarse_s}", 12), Piece("system", system), Piece(f"question-{i}", 40)]
        visits.append(visit(when, str(i), prompt_token_ids(pieces, {}).tolist(), (), BLOCK))
    return visits

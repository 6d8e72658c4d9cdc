"""What a load test sends: a simulator's workload, written out as text.

A piece of a prompt becomes common English words, which follow from its name: equal names, equal text, so prefixes
that are shared in the workload are shared on the wire. Each word is one token in most vocabularies; how many
tokens it really was, the server's `usage` says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course.simulator.workload.requests import Piece, Workload, token_ids
from minillm.core.brief import brief


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as its client plans it."""

    index: int
    prompt: str | list[int]
    """Text, or token ids (for completions, of one turn). For a later turn: what it adds to the conversation so far."""
    max_tokens: int
    due: float | None = 0.0
    """Seconds after the start; None for a later turn, which waits for the answer before it."""
    after: int | None = None
    """For a later turn: the index of the turn before it."""
    think_s: float = 0.0
    """For a later turn: seconds from that answer to this request."""
    tenant: str = ""
    """Sent as OpenAI's `user`, if it has a name."""

    __repr__ = brief


def planned_requests(workload: Workload) -> list[PlannedRequest]:
    """Every request of a workload, in its order."""
    return [
        PlannedRequest(r.index, text_of(r.pieces), r.output_tokens, r.arrival, r.after, r.think_s, r.tenant)
        for r in workload.requests
    ]


@cache
def common_words() -> tuple[str, ...]:
    """The vocabulary of the prompts."""
    file = Path(__file__).parent / "common_words.txt"
    return tuple(file.read_text(encoding="utf-8").split())


def text_of(pieces: Iterable[Piece]) -> str:
    """The pieces as words, each word with the space before it."""
    words = common_words()
    return "".join(f" {words[token]}" for piece in pieces for token in token_ids(piece, len(words)))

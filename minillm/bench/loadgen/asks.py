"""What a load test sends: a simulator's workload, written out as text.

A piece of a prompt becomes common English words, which follow from its name: equal names, equal text, so prefixes
that are shared in the workload are shared on the wire. Each word is one token in most vocabularies; how many
tokens it really was, the server's `usage` says.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minillm.simulate.workload.requests import Piece, Workload, token_ids

COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death course someone experience behind reach local six seven eight black white least season quality
pressure answer tax director position model figure
"""
WORDS = tuple(COMMON.split())


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as its client plans it."""

    index: int
    prompt: str
    """For a later turn: what it adds to the conversation so far."""
    max_tokens: int
    due: float | None = 0.0
    """Seconds after the start; None for a later turn, which waits for the answer before it."""
    after: int | None = None
    """For a later turn: the index of the turn before it."""
    think_s: float = 0.0
    """For a later turn: seconds from that answer to this request."""


def asks_of(workload: Workload) -> list[Ask]:
    """Every request of a workload, in its order."""
    return [
        Ask(
            index=request.index,
            prompt=text_of(request.pieces),
            max_tokens=request.output_tokens,
            due=request.arrival,
            after=request.after,
            think_s=request.think_s,
        )
        for request in workload.requests
    ]


def text_of(pieces: Iterable[Piece]) -> str:
    """The pieces as words, each word with the space before it."""
    return "".join(f" {WORDS[token]}" for piece in pieces for token in token_ids(piece, len(WORDS)))

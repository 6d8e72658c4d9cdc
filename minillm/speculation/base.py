"""What a proposer is."""

from collections.abc import Sequence
from typing import NamedTuple

from minillm.core.request import Draft, Request


class DraftRequest(NamedTuple):
    """A request that is one token behind, and how many tokens are to be drafted for it."""

    request: Request
    k: int


class Proposer:
    """Guesses what comes next. This one never has a guess, and keeps nothing.

    Any guess is right in the sense that the output stays what it would have been; good ones save steps. What it
    keeps about a request must not depend on how earlier drafts fared: a request may be preempted, have drafts cut
    short, or go without for a while. Its known tokens are the truth.

    A proposer that is also a `HiddenStateReader` is shown the model's hidden states.
    """

    depths: tuple[int, ...] = ()
    """What it reads of the model, if it does."""

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        """A draft of at most `k` tokens for each, empty where there is no good guess."""
        return [Draft() for _ in wanted]

    def forget(self, request: Request) -> None:
        """The request has ended or lost its KV blocks: let go of all that is kept for it. It may come back."""

    def reset(self) -> None:
        """`propose` was interrupted: let go of everything."""

"""What a proposer is, and the one that proposes nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from minillm.core.batch import ScheduledRequest
from minillm.core.request import Draft, Request

if TYPE_CHECKING:
    from torch import Tensor


class DraftRequest(NamedTuple):
    """A request that is one token behind, and how many tokens are to be drafted for it."""

    request: Request
    k: int


class Proposer(Protocol):
    """Guesses what comes next.

    Any guess is right in the sense that the output stays what it would have been; good ones save steps. What it
    keeps about a request must not depend on how earlier drafts fared: a request may be preempted, have drafts cut
    short, or go without for a while. Its known tokens are the truth.

    A proposer that is also a `HiddenStateReader` is shown the model's hidden states.
    """

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        """A draft of at most `k` tokens for each, empty where there is no good guess."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended or lost its KV blocks: let go of all that is kept for it. It may come back."""
        ...

    def reset(self) -> None:
        """`propose` was interrupted: let go of everything."""
        ...


@runtime_checkable
class HiddenStateReader(Protocol):
    """A proposer that builds on the hidden states of the model, as EAGLE's draft heads do (Li et al. 2024)."""

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: "Tensor") -> None:
        """Called in every step, before anything is sampled.

        Args:
            hidden: [T, h] what goes into the output head, for every token of the step: those of scheduled[0] from
                its `start` to its `end`, then those of scheduled[1], and so on. Rows of rejected drafts are among
                them; who was rejected is seen when the request's known tokens have grown.
        """
        ...


@runtime_checkable
class ShowsHiddenStates(Protocol):
    """A runner that has hidden states to show."""

    hidden_state_reader: HiddenStateReader | None


class NoProposer:
    """Speculation is off."""

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft() for _ in wanted]

    def forget(self, request: Request) -> None:
        pass

    def reset(self) -> None:
        pass


class MadeUpProposer(NoProposer):
    """As many tokens as are wanted, all of them 0: for a simulated runner, which decides itself how many pass."""

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([0] * k) for _, k in wanted]

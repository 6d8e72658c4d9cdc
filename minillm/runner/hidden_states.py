"""How the model's hidden states are shown to code that builds on them: draft heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from minillm.core.batch import ScheduledRequest

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class HiddenStateReader(Protocol):
    """Builds on the hidden states of the model, as EAGLE's draft heads do (Li et al. 2024)."""

    depths: tuple[int, ...]
    """What it reads: the residual stream after so many layers each (EAGLE-3, Li et al. 2025); () = what goes into the
    output head."""

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: "Tensor") -> None:
        """Called in every step, before anything is sampled.

        Args:
            hidden: [T, h] what goes into the output head, or [T, len(depths) * h] the streams side by side, for every
                token of the step: those of scheduled[0] from its `start` to its `end`, then those of scheduled[1], and
                so on. Rows of rejected drafts are among them; which ones were rejected is seen when the request's
                known tokens have grown. The next step may write over this memory: copy what is to be kept.
        """
        ...


@runtime_checkable
class ShowsHiddenStates(Protocol):
    """A runner that has hidden states to show."""

    hidden_state_reader: HiddenStateReader | None

    def show_hidden_states(self, reader: HiddenStateReader) -> None:
        """Show the reader its hidden states, from the next step on."""
        ...

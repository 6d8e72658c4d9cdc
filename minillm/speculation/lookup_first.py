"""Two proposers for one text. Where it repeats itself, copying is likelier to be right than guessing, and is free.

An answer repeats names, phrases of the question, the shape of a list: what a draft head can hardly know. Where nothing
is repeated, the head guesses. (A drafter that learns beside one that looks up: Oliaro et al. 2024, SuffixDecoding.)
"""

from collections.abc import Sequence

from torch import Tensor

from minillm.request import Draft, Request
from minillm.scheduling.batch import ScheduledRequest
from minillm.speculation.base import HiddenStateReader, Proposer, Wanted
from minillm.speculation.draft_head import DraftHeadProposer


class LookupFirst(Proposer, HiddenStateReader):
    """Asks the head only for requests that the lookup has nothing for.

    Args:
        lookup: proposes what followed the same words before, or nothing.
    """

    def __init__(self, lookup: Proposer, head: DraftHeadProposer) -> None:
        self.lookup, self.head = lookup, head

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        drafts = self.lookup.propose(wanted)
        left = [i for i, draft in enumerate(drafts) if not draft.token_ids]
        for i, draft in zip(left, self.head.propose([wanted[i] for i in left])):
            drafts[i] = draft
        return drafts

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        self.head.read_hidden_states(scheduled, hidden)

    def forget(self, request: Request) -> None:
        self.lookup.forget(request)
        self.head.forget(request)

    def reset(self) -> None:
        self.lookup.reset()
        self.head.reset()

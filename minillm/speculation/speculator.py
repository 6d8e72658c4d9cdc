"""The engine's side of speculation: asks the gates, then the proposer, and tells both what came of it."""

import logging
from collections.abc import Callable, Sequence

import torch

from minillm.core.batch import Runner, ScheduledBatch, StepOutput
from minillm.core.request import Draft, Request
from minillm.policies.config import SpeculativeConfig
from minillm.runner.hidden_states import HiddenStateReader, ShowsHiddenStates
from minillm.speculation.base import DraftRequest, NoProposer, Proposer
from minillm.speculation.gates import COSTLY_ROW, Gates, row_price

logger = logging.getLogger(__name__)


class Speculator:
    """A proposer behind its gates.

    Args:
        config: None = off; then nothing is ever drafted.
        now: the clock.
        context_limit: most tokens of a request: nothing is drafted beyond.
        runner: shows its hidden states to a proposer that reads them.
    """

    def __init__(
        self,
        config: SpeculativeConfig | None,
        proposer: Proposer,
        now: Callable[[], float],
        runner: Runner,
        context_limit: int,
    ) -> None:
        device = getattr(runner, "device", None)
        floor = row_price(device) if isinstance(device, torch.device) else COSTLY_ROW
        self.gates = None if config is None else Gates(config, floor)
        self.proposer = proposer
        self.now = now
        self.context_limit = context_limit
        self.runner = runner
        if isinstance(proposer, HiddenStateReader) and isinstance(runner, ShowsHiddenStates):
            runner.hidden_state_reader = proposer

    def propose(self, running: Sequence[Request]) -> float:
        """Give every running request its draft for the step to come. Returns the seconds it took, 0 when off."""
        if self.gates is None:
            return 0.0
        start = self.now()
        wanted = []
        for request in running:
            request.draft = Draft()
            # Who is more than one token behind computes known tokens; guessing goes on where those end.
            if request.num_tokens - request.num_computed_tokens == 1:
                room = self.context_limit - request.num_tokens - 1  # the step itself yields one more
                k = min(self.gates.num_drafts(request, len(running)), room)
                wanted += [DraftRequest(request, k)] if k > 0 else []
        try:
            for (request, _), draft in zip(wanted, self.proposer.propose(wanted)):
                request.draft = draft
        except Exception:
            logger.exception("the proposer failed: speculation is off from here on")
            drop_drafts(running)
            self.proposer.reset()
            self.proposer, self.gates = NoProposer(), None
            if isinstance(self.runner, ShowsHiddenStates):
                self.runner.hidden_state_reader = None
        except BaseException:
            drop_drafts(running)
            self.proposer.reset()
            raise
        return self.now() - start

    def learn(self, batch: ScheduledBatch, output: StepOutput) -> None:
        """A step is over: whose drafts passed?"""
        if self.gates is None:
            return
        for scheduled in batch.requests:
            if scheduled.num_drafts and (tokens := output.tokens.get(scheduled.request.request_id)):
                self.gates.learn(scheduled.request, scheduled.num_drafts, len(tokens) - 1)

    def forget(self, request: Request) -> None:
        """The request has ended, or lost its blocks."""
        self.proposer.forget(request)
        if self.gates is not None:
            self.gates.forget(request)

    def start_over(self) -> None:
        """Nobody is left."""
        self.proposer.reset()
        if self.gates is not None:
            self.gates = Gates(self.gates.config, self.gates.row_price)


def drop_drafts(running: Sequence[Request]) -> None:
    """Drafts that were left half made."""
    for request in running:
        request.draft = Draft()

"""Speculation as the core's draft policy: decides how far, asks the proposer, and makes room for what it guesses."""

import logging
from collections.abc import Callable, Sequence

from minillm.core.batch import Runner, ScheduledBatch, Step, StepOutput
from minillm.core.request import Draft, Request
from minillm.core.timeline import Clock
from minillm.policies.config import SpeculativeConfig
from minillm.runner.hidden_states import HiddenStateReader, ShowsHiddenStates
from minillm.speculation.base import DraftRequest, Proposer
from minillm.speculation.draft_length import DraftLength

logger = logging.getLogger(__name__)


class Speculator:
    """A proposer, and when to ask it: a DraftPolicy.

    Args:
        config: when drafting pays.
        context_limit: most tokens of a request: nothing is drafted beyond.
        runner: shows its hidden states to a proposer that reads them.
        row_cost: what one more row adds to the cost of a step with one (draft_length.py).
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        proposer: Proposer,
        clock: Clock,
        runner: Runner,
        context_limit: int,
        row_cost: float,
    ) -> None:
        self.proposer = proposer
        self.clock = clock
        self.runner = runner
        self.context_limit = context_limit
        self.length = DraftLength(config, row_cost)
        if isinstance(proposer, HiddenStateReader) and isinstance(runner, ShowsHiddenStates):
            runner.show_hidden_states(proposer)

    def propose(self, running: Sequence[Request]) -> float:
        """Give every running request its draft for the step to come. Returns the seconds it took."""
        start = self.clock.now()
        wanted = []
        for request in running:
            request.draft = Draft()
            # A request that is more than one token behind computes known tokens; guessing goes on where those end.
            # And no proposer knows a grammar: most of its guesses would be ruled out.
            if request.num_missing == 1 and request.matcher is None:
                k = min(self.length.num_drafts(request, len(running)), self._room(request))
                if k > 0:
                    wanted.append(DraftRequest(request, k))
        try:
            for (request, k), draft in zip(wanted, self.proposer.propose(wanted)):
                draft.token_ids = draft.token_ids[:k]  # the runner has memory for so many rows
                request.draft = draft
        except BaseException as error:
            for request in running:
                request.draft = Draft()  # it may be half made
            self.proposer.reset()
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            logger.exception("the proposer failed: speculation is off from here on")
            self.proposer = Proposer()
            if isinstance(self.runner, ShowsHiddenStates):
                self.runner.hidden_state_reader = None
        return self.clock.now() - start

    def reserve(self, step: Step) -> None:
        """Check drafts with the budget that is left if each running request gets a token: none goes without so that
        another may guess."""
        spare = step.draft_budget
        for request, scheduled in list(step.scheduled.items()):
            num_drafts = min(len(request.draft), spare, self._room(request, scheduled.samples))
            if num_drafts > 0:
                step.add_draft(request, num_drafts)
                spare -= num_drafts

    def place(self, step: Step, append: Callable[[Request, int], bool]) -> None:
        """Give drafts blocks that no request's own tokens need: none is preempted or kept waiting for a guess. A draft
        that gets none is not checked."""
        for request, scheduled in list(step.scheduled.items()):
            if scheduled.num_drafts and not append(request, scheduled.end):
                step.drop_draft(request)

    def observe(self, batch: ScheduledBatch, output: StepOutput) -> None:
        """A step is over: its output says which draft tokens were accepted."""
        for scheduled in batch.requests:
            if scheduled.num_drafts and (tokens := output.tokens.get(scheduled.request.request_id)):
                self.length.observe(scheduled.request, scheduled.num_drafts, len(tokens) - 1)

    def forget(self, request: Request) -> None:
        """The request has ended, or lost its blocks."""
        self.proposer.forget(request)
        self.length.forget(request)

    def start_over(self) -> None:
        """Let go of what was kept about requests: none is left."""
        self.proposer.reset()
        self.length = DraftLength(self.length.config, self.length.row_cost)

    def _room(self, request: Request, num_scheduled_pending: int = 0) -> int:
        """Draft tokens that fit the context after its own tokens; a step yields one token more than are accepted."""
        return self.context_limit - (request.num_tokens - num_scheduled_pending) - 1

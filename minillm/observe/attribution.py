"""Who lost time to whose work: what steps cost beyond each request's own, in `Timeline.lost`."""

from collections.abc import Sequence

from minillm.core.request import Request
from minillm.core.step_log import FinishedStep, StepRecord, StepShare
from minillm.core.timeline import Verification
from minillm.observe.step_cost import StepCost, StepCostModel, StepTokens


class Attribution:
    """A listener of an engine's step log (`log.listeners`): splits each step, and charges its requests."""

    def __init__(self) -> None:
        self.costs = StepCostModel()

    def __call__(self, step: FinishedStep) -> None:
        """Learn from a step, and write down what it cost those of its requests that were still there."""
        record = step.record
        tokens = StepTokens.of(record)
        worked_s = record.end - record.start - record.stages.get("draft", 0.0)
        if not step.output.errors:  # a failed step doesn't tell what a step takes
            self.costs.observe(tokens, worked_s)
        if tokens.is_mixed:
            living = [part.request if lives else None for part, lives in zip(step.batch.requests, step.alive)]
            charge(record, living, self.costs.split(tokens, worked_s), tokens.drafts)


def charge(record: StepRecord, requests: Sequence[Request | None], cost: StepCost, num_drafts: int) -> None:
    """Charge each request with what others' prompts added to a step in which it decoded, and with its rejected drafts.

    Args:
        requests: one for each of the record's shares; None if it had ended before the step did.
        num_drafts: draft tokens in the whole step.
    """
    for request, share in zip(requests, record.shares):
        if request is None:
            continue
        if share.num_drafts:
            charge_draft(request, share, record, cost, num_drafts)
        if cost.prompts and not share.is_prefill:
            request.timeline.lost["stalled_by_prefill"] += cost.prompts


def charge_draft(request: Request, share: StepShare, record: StepRecord, cost: StepCost, num_drafts: int) -> None:
    """Write down in the request's timeline what became of its draft. Each draft of a step costs the same.

    Args:
        num_drafts: draft tokens in the whole step.
    """
    draft_s = record.stages.get("draft", 0.0)
    verify_s = record.end - record.start - draft_s
    request.timeline.verifications.append(Verification(share.num_drafts, share.num_accepted, draft_s, verify_s))
    if rejected := share.num_drafts - share.num_accepted:
        request.timeline.lost["rejected_drafts"] += rejected / num_drafts * (draft_s + cost.drafts)

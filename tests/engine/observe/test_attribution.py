"""Who is charged for what a step cost."""

import pytest
from core.counting import request

from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import Verification
from minillm.observe.attribution import charge
from minillm.observe.step_cost import StepCost


def test_a_rejected_draft_costs_its_row_and_its_drafting() -> None:
    """A step of 2 s. Checking 5 drafts added 0.25 s to it, and making them took 0.5 s: 3 of the 5 were rejected."""
    share = StepShare("a", 5, False, num_drafts=4, num_accepted=1)
    other = StepShare("b", 2, False, num_drafts=1, num_accepted=1)
    for stages, draft_s in (({"draft": 0.5}, 0.5), ({}, 0.0)):
        record = StepRecord(0, 1.0, 3.0, (share, other), 0, 2, 3, 8, (), stages)
        drafted = request("a", 5)
        charge(record, [drafted, None], StepCost(1.0, 0.25, 0.0, drafts=0.25), num_drafts=5)
        assert drafted.timeline.verifications == [Verification(4, 1, draft_s, 2.0 - draft_s)]
        assert drafted.timeline.lost == {"rejected_drafts": pytest.approx(3 / 5 * (0.25 + draft_s))}


def test_prompts_are_charged_to_those_that_decode_beside_them() -> None:
    decodes, prefills, ended = request("decodes", 5), request("prefills", 9), request("ended", 5)
    shares = StepShare("decodes", 1, False), StepShare("prefills", 4, True), StepShare("ended", 1, False)
    record = StepRecord(0, 1.0, 3.0, shares, 0, 3, 3, 8, (), {})
    charge(record, [decodes, prefills, None], StepCost(1.0, 0.25, prompts=0.75, drafts=0.0), num_drafts=0)
    assert decodes.timeline.lost == {"stalled_by_prefill": 0.75}
    assert prefills.timeline.lost == ended.timeline.lost == {}

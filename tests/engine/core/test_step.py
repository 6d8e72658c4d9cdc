"""A step while it is put together, and what is written down of it when it's done."""

from collections.abc import Callable, Sequence

import pytest
from core.counting import add, make_core, request, run

from minillm.core.batch import Step
from minillm.core.request import Draft, Request
from minillm.core.scheduler import Scheduler
from minillm.core.seams import NoDrafts, SortedQueue
from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import Clock
from minillm.observe.attribution import Attribution


def test_a_step_takes_from_its_budget_and_gives_back() -> None:
    step, first, second = Step(20, 0), request("first", 5), request("second", 3)
    step.add(first, 4, [], samples=False)
    step.add(second, 3, [], samples=True)
    assert (step.budget, first.num_pending_tokens, second.num_pending_tokens) == (13, 0, 1)
    step.add_draft(second, 2)
    assert (step.budget, second.num_computed_tokens, step.scheduled[second].num_drafts) == (11, 5, 2)
    step.drop_draft(second)
    assert (step.budget, second.num_computed_tokens, step.scheduled[second].num_drafts) == (13, 3, 0)
    step.add_draft(second, 1)
    assert step.remove(second) is not None
    assert (step.budget, second.num_computed_tokens, second.num_pending_tokens) == (16, 0, 0)
    assert step.remove(second) is None and step.budget == 16


def test_a_prompt_over_the_budget_gives_back_no_more_than_there_was() -> None:
    step, whole, draft = Step(8, 0), request("whole", 12), request("draft", 3)
    step.add(draft, 3, [], samples=True)
    step.add(whole, 12, [], samples=True)  # not cut into chunks
    assert step.budget == -7
    step.remove(whole)
    assert step.budget == 5
    step.add(whole, 12, [], samples=True)
    step.remove(draft)
    assert step.budget == -4, "the prompt still takes all of it"


def test_a_prompt_over_the_budget_leaves_no_other_request_a_token() -> None:
    core = make_core(enable_chunked_prefill=False, max_num_batched_tokens=4)
    add(core, request("whole", 9), request("short", 1))
    core.step()
    assert [(share.request_id, share.num_tokens) for share in core.log.records[-1].shares] == [("whole", 9)]


class Stingy(Scheduler):
    """Grants b no more than 3 tokens a step."""

    def grant(self, request: Request, num_missing: int, step: Step) -> int:
        most = super().grant(request, num_missing, step)
        return min(most, 3) if request.request_id == "b" else most


class Slow(SortedQueue):
    """Looking for who is overdue takes an eighth of a second."""

    clock: Clock

    def overdue(self, now: float) -> list[Request]:
        self.clock.advance(0.125)
        return []


class Wrong(NoDrafts):
    """Half a second of guessing, for two tokens that never pass."""

    clock: Clock

    def propose(self, running: Sequence[Request]) -> float:
        self.clock.advance(0.5)
        for each in running:
            each.draft = Draft([0, 0])
        return 0.5

    def place(self, step: Step, append: Callable[[Request, int], bool]) -> None:
        for each in [each for each in step.scheduled if each.draft]:
            step.add_draft(each, 2)
            assert append(each, each.num_computed_tokens)


def test_what_is_written_down_of_a_step() -> None:
    """The second step of a (5 prompt tokens, decodes) and b (8, gets 3 of them): every figure by hand."""
    queue, drafts, seen = Slow(), Wrong(), []
    core = make_core(
        queue=queue, drafts=drafts, scheduler=Stingy, per_token_s=0.125, max_num_seqs=2, max_num_batched_tokens=8
    )
    queue.clock = drafts.clock = core.clock
    core.log.listeners += [Attribution(), seen.append]

    def on_token(request: Request, token_id: int) -> bool:
        core.clock.advance(0.25)
        return False

    core.on_token = on_token
    a, b, c = request("a", 5, 3), request("b", 8, 3), request("c", 3, 3)
    core.add(a)
    core.step()
    add(core, b, c)
    core.step()
    second = core.log.records[1]
    start = 0.625 + 1.625 + 0.25
    assert second == StepRecord(
        step_id=1,
        start=start,
        end=start + 0.5 + 0.125 + 1.75 + 0.25,
        num_waiting=1,
        num_running=2,
        preempted=(),
        shares=(StepShare("a", 3, False, 2, 0), StepShare("b", 3, True)),
        kv_blocks_used=3,
        kv_blocks_total=8,
        stages={"draft": 0.5, "schedule": 0.125, "forward": 1.75, "detokenize": 0.25},
        num_context_tokens=6,
    )
    assert a.draft == Draft() and a.num_computed_tokens == 6, "what did not pass is taken back"
    core.step()  # a has 3 tokens, and b 5: two guesses each, of which none passes
    stalled, rejected = 0.125 * (3 + 3), (0.125 * 2 + 0.5) + (0.125 * 2 + 0.5 / 2)
    figures = {"detokenize": 0.75, "stalled_by_prefill": stalled, "rejected_drafts": rejected}
    assert a.timeline.lost == pytest.approx(figures, rel=0.02) and "stalled_by_prefill" not in b.timeline.lost
    run(core)
    assert [step.record for step in seen] == list(core.log.records) and a.output_token_ids == [5, 6, 7]


def test_records_of_overlapping_steps_do_not_overlap() -> None:
    core = make_core(1, per_token_s=0.125)
    core.log.listeners.append(Attribution())
    gone, stays, late = request("gone", 3), request("stays", 4), request("late", 8)
    add(core, gone, stays)
    core.step()
    core.add(late)
    core.step()
    core.abort("gone")
    core.step()
    assert core.log.records[1].shares[-1].is_prefill and stays.timeline.lost["stalled_by_prefill"] > 0
    run(core)
    ends = [record.end for record in core.log.records]
    assert [record.start for record in core.log.records] == [0.0, *ends[:-1]]
    assert all(record.stages["schedule"] == 0.0 for record in core.log.records)
    # All of a step that waited on the device is its forward pass, none of which is taken for hidden.
    assert all(record.stages["forward"] == pytest.approx(record.end - record.start) for record in core.log.records)


def test_a_preemption_in_flight_takes_nothing_from_the_others_books() -> None:
    core = make_core(1, enable_prefix_caching=False, per_token_s=0.125, long_prefill_token_threshold=4)
    core.log.listeners.append(Attribution())
    prefill, victim, decode = request("prefill", 30, 1), request("victim", 5, 2), request("decode", 7, 6)
    add(core, prefill, victim, decode)
    while not victim.num_preemptions:
        core.step()
    before = decode.timeline.lost["stalled_by_prefill"]
    core.step()
    assert decode.timeline.lost["stalled_by_prefill"] > before


def test_a_whole_prompt_is_in_a_step_or_not() -> None:
    core = make_core(enable_chunked_prefill=False, max_num_batched_tokens=8, scheduler=Stingy)
    for name, num_tokens in (("a", 3), ("c", 5), ("b", 6)):
        core.add(request(name, num_tokens, 9))
    steps = []
    for _ in range(2):
        core.step()
        steps.append({share.request_id: share.num_tokens for share in core.log.records[-1].shares})
    assert steps == [{"a": 3, "c": 5}, {"a": 1, "c": 1, "b": 3}]
    full = make_core(enable_chunked_prefill=False, max_num_batched_tokens=2, scheduler=Stingy)
    for name, num_tokens in (("a", 2), ("b", 2), ("c", 1)):
        full.add(request(name, num_tokens, 9))
    full.step()
    full.step()
    assert [share.num_tokens for share in full.log.records[-1].shares] == [1, 2], "its own, though one was left"

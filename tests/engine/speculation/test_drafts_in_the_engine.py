"""Drafts in the scheduler and the engine, over a runner that notices every block with wrong contents."""

import logging
from typing import Any

import fake_runner
import pytest
from fake_runner import FakeRunner, GuessingProposer, drain, expected_output, greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm import Engine, EngineConfig
from minillm.core.errors import ConfigError
from minillm.core.timeline import VirtualClock
from minillm.observe.speculation import SpeculationSummary
from minillm.speculation.base import Proposer

BLOCK = 4
ALWAYS = {"method": "ngram", "k": 4, "acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1}


def make_engine(rate: float = 0.7, num_kv_blocks: int = 64, num_host_blocks: int = 0, **fields: Any) -> Engine:
    fields = dict(max_num_batched_tokens=32, max_model_len=256, speculative=ALWAYS) | fields
    return fake_runner.make_engine(num_kv_blocks, num_host_blocks, proposer=GuessingProposer(rate), **fields)


def test_a_step_yields_what_passed_and_one_more_in_one_delivery() -> None:
    engine = make_engine(rate=1.0)
    engine.add_request([1, 2, 3], greedy(12))
    seen = []
    while engine.has_unfinished:
        [output] = engine.step()
        seen.append(output.completions[0].num_new_tokens)
    assert seen == [1, 5, 5, 1], "the prompt's, twice four that passed and one, and what is left"
    assert output.token_ids == expected_output([1, 2, 3], 12)
    assert len(output.timeline.deliveries) == 4 and output.timeline.num_tokens == 12
    assert [batch.num_tokens for batch in engine.runner.batches] == [3, 5, 5, 1]


def test_no_proposer_is_asked_for_more_than_the_window_holds() -> None:
    engine = make_engine(rate=1.0, max_model_len=10)
    asked = []
    propose = engine.speculator.proposer.propose
    engine.speculator.proposer.propose = lambda wanted: asked.extend(wanted) or propose(wanted)
    engine.add_request([1, 2, 3], greedy(100))
    while engine.has_unfinished:
        before = len(asked)
        known = next(iter(engine.scheduler.running)).num_known_tokens if engine.scheduler.running else 3
        engine.step()
        assert all(known + k < 10 for _, k in asked[before:])
    assert asked


def test_drafts_count_against_the_budget_and_nobody_goes_without_for_them() -> None:
    engine = make_engine(rate=1.0, max_num_seqs=6, max_num_batched_tokens=8)
    for i in range(6):
        engine.add_request([i], greedy(20), request_id=str(i))
    outputs = drain(engine)
    assert all(outputs[str(i)].token_ids == expected_output([i], 20) for i in range(6))
    for batch in engine.runner.batches:
        assert batch.num_tokens <= 8
    full = [batch for batch in engine.runner.batches if len(batch.requests) == 6]
    assert full and all(sum(s.num_drafts for s in batch.requests) <= 2 for batch in full)
    assert any(sum(s.num_drafts for s in batch.requests) == 2 for batch in full)


tight_requests = st.lists(st.tuples(st.integers(1, 12), st.integers(2, 12)), min_size=2, max_size=6)


@settings(max_examples=100)
@given(sizes=tight_requests, num_kv_blocks=st.integers(6, 14))
def test_drafts_that_never_pass_change_no_step_of_anybody(sizes: list[tuple[int, int]], num_kv_blocks: int) -> None:
    """Who is admitted, preempted, and computed is as without drafts, however few blocks there are."""
    runs = []
    for speculative in (ALWAYS, None):
        fields = dict(speculative=speculative, max_num_batched_tokens=200, enable_prefix_caching=False)
        engine = make_engine(0.0, num_kv_blocks, **fields)
        for i, (prompt_length, max_tokens) in enumerate(sizes):
            engine.add_request([i] * prompt_length, greedy(max_tokens), request_id=str(i))
        drain(engine)
        steps = [{s.request.request_id: s.end - s.num_drafts for s in b.requests} for b in engine.runner.batches]
        runs.append((steps, engine.scheduler.num_preemptions))
    assert runs[0] == runs[1]


def test_what_was_drafted_is_in_the_records() -> None:
    engine = make_engine(rate=0.6)
    engine.add_request(list(range(9)), greedy(200), request_id="a")
    engine.add_request([1], greedy(60), request_id="b")
    outputs = drain(engine)
    of_steps = SpeculationSummary.of_steps(engine.steps)
    of_requests = SpeculationSummary.of_requests(outputs.values())
    assert of_steps.drafted_at == of_requests.drafted_at and of_steps.accepted_at == of_requests.accepted_at
    checked = [s for batch in engine.runner.batches for s in batch.requests if s.num_drafts]
    assert sum(of_steps.drafted_at) == sum(s.num_drafts for s in checked)
    # Everything but the first token of each, and what came after the last could be drafted, came from verifications.
    verified = of_steps.num_verifications * of_steps.emitted_per_verify
    plain = sum(s.samples and not s.num_drafts for batch in engine.runner.batches for s in batch.requests)
    assert verified + plain == pytest.approx(260)
    for output in outputs.values():
        assert output.timeline.lost["rejected_drafts"] > 0
        assert sum(output.timeline.phases().values()) == pytest.approx(output.timeline.e2e)
    assert not any(share.is_prefill for record in list(engine.steps)[1:] for share in record.shares)


class Eager(GuessingProposer):
    """Drafts more than it's asked for, and keeps its lists."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.kept: list[list[int]] = []

    def propose(self, wanted: Any) -> Any:
        drafts = super().propose([each._replace(k=each.k + 3) for each in wanted])
        self.kept += [draft.token_ids for draft in drafts]
        return drafts


def test_more_than_was_asked_for_is_not_checked() -> None:
    engine = make_engine()
    engine.speculator.proposer = proposer = Eager(rate=1.0)
    engine.add_request([1, 2, 3], greedy(20))
    [output] = drain(engine).values()
    assert output.token_ids == expected_output([1, 2, 3], 20)
    assert max(share.num_drafts for batch in engine.runner.batches for share in batch.requests) == ALWAYS["k"]
    assert max(map(len, proposer.kept)) == ALWAYS["k"] + 3, "the proposer's own lists are left as they were"


class Failing(GuessingProposer):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.num_resets = self.num_calls = 0

    def propose(self, wanted: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 3:
            raise self.error
        return super().propose(wanted)

    def reset(self) -> None:
        self.num_resets += 1


def test_a_proposer_that_fails_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    proposer = engine.speculator.proposer = Failing(RuntimeError("no idea"))
    engine.add_request([1, 2, 3], greedy(20))
    with caplog.at_level(logging.ERROR):
        [output] = drain(engine).values()
    assert output.token_ids == expected_output([1, 2, 3], 20)
    assert proposer.num_resets == 1 and proposer.num_calls == 3
    assert type(engine.speculator.proposer) is Proposer and "no idea" in caplog.text


def test_ctrl_c_while_drafting_leaves_everything_in_order() -> None:
    engine = make_engine()
    proposer = engine.speculator.proposer = Failing(KeyboardInterrupt())
    engine.add_request([1, 2, 3], greedy(20))
    engine.step()
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert proposer.num_resets == 1
    [output] = drain(engine).values()
    assert output.token_ids == expected_output([1, 2, 3], 20)


def test_running_ahead_and_speculating_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="a draft follows known tokens"):
        make_engine(async_scheduling=True)
    engine = make_engine()
    engine.runner.runs_beside_python = True
    again = Engine.on_runner(engine.config, engine.runner, engine.clock, proposer=GuessingProposer())
    again.add_request([1, 2, 3], greedy(3))
    assert again.step()[0].token_ids == expected_output([1, 2, 3], 1), "waited for at once"


def test_without_a_model_only_lookups_can_draft() -> None:
    clock = VirtualClock()
    config = EngineConfig(max_model_len=64, block_size=BLOCK, speculative={"method": "draft_head"})
    with pytest.raises(ConfigError, match="needs a model"):
        Engine.on_runner(config, FakeRunner(8, BLOCK, clock), clock)
    config = config.replace(speculative={"method": "ngram"})
    engine = Engine.on_runner(config, FakeRunner(16, BLOCK, clock), clock)
    engine.add_request([1, 2, 3, 1, 2], greedy(10))
    assert drain(engine).popitem()[1].token_ids == expected_output([1, 2, 3, 1, 2], 10)

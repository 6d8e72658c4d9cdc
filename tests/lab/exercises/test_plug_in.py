"""A learner's parts serve requests; one that breaks a rule is replaced, and the answers stay right."""

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner, drain, expected_output, greedy, next_token

from course.lab.grading.exercises import find
from course.lab.grading.exercises.continuous_batching_step import Seat, right_plan
from course.lab.grading.plug_in import CheckingSampler, OpenLab, Parts, build_engine
from course.lab.grading.plug_in_guard import FallbackGuard
from course.lab.grading.source import answer_file
from minillm import EngineConfig, SamplingParams
from minillm.core.request import Draft, Request
from minillm.core.scheduler import Scheduler
from minillm.core.timeline import Timeline, VirtualClock
from minillm.runner.rejection_sampler import RejectionSampler
from minillm.runner.rows import DraftPosition

PROMPTS = [list(range(10 * i, 10 * i + length)) for i, length in enumerate((30, 5, 17, 60, 9, 41))]


def model_answer(exercise_id: str) -> dict:
    names: dict = {}
    exec(answer_file(find(exercise_id), "solution"), names)
    return names


PLAN_STEP = model_answer("continuous-batching-step")["plan_step"]
BLOCK_POOL = model_answer("block-pool")["BlockPool"]
PICK_VICTIM = model_answer("preemption")["pick_victim"]
BLOCK_NAMES = model_answer("prefix-hash-chain")["block_names"]
EVICTION_ORDER = model_answer("lru-eviction")["EvictionOrder"]
SHARED = [[7, 8, 9, 10, 11, 12, 13, 14] * 2, [3, 1, 4, 1, 5, 9, 2, 6] * 2, list(range(40))]
RETURNING = [[*SHARED[i % 3], *range(i, i + 5)] for i in (0, 1, 0, 2, 1, 0, 2, 0, 1)]
"""Prompts of which some begin alike: a cache that is too small must forget some of them."""


def first_unplanned(running: list, planned: set[str]):
    return next(each for each in running if each.request_id not in planned)


class Leaking(BLOCK_POOL):
    def release(self, block_ids) -> None:
        super().release(block_ids[1:])


def right_guess(tokens: list[int], k: int) -> list[int]:
    drafted: list[int] = []
    for _ in range(k):
        drafted.append(next_token([*tokens, *drafted]))
    return drafted


def served(parts: Parts, num_kv_blocks: int = 64, prompts=PROMPTS, **fields) -> tuple[list[str], list]:
    """Serve prompts on a runner that notices every wrong block; returns notes and the batches."""
    clock, notes = VirtualClock(), []
    runner = FakeRunner(num_kv_blocks, 4, clock)
    config = EngineConfig(max_model_len=200, max_num_seqs=3, max_num_batched_tokens=32, block_size=4, **fields)
    engine = build_engine(config, parts, notes, runner=runner, clock=clock)
    for i, prompt in enumerate(prompts):
        engine.add_request(prompt, greedy(7), request_id=str(i))
    outputs = drain(engine)
    for i, prompt in enumerate(prompts):
        assert outputs[str(i)].token_ids == expected_output(prompt, 7)
    return notes, runner.batches


def steps_of(batches: list) -> list[dict[str, int]]:
    return [{each.request.request_id: each.num_tokens for each in batch.requests} for batch in batches]


def test_the_model_answers_plan_is_the_engines_own() -> None:
    ours, theirs = served(Parts()), served(Parts(scheduler_step=PLAN_STEP))
    assert theirs[0] == []
    assert steps_of(theirs[1]) == steps_of(ours[1])


def test_the_oracle_of_the_exercise_is_the_engines_rule() -> None:
    def oracle(running, waiting, budget, seats):
        seated = [
            [Seat(s.request_id, s.num_tokens, s.num_computed_tokens) for s in each] for each in (running, waiting)
        ]
        return right_plan(*seated, budget, seats)

    notes, batches = served(Parts(scheduler_step=oracle), num_kv_blocks=400)
    assert notes == []
    assert steps_of(batches) == steps_of(served(Parts(), num_kv_blocks=400)[1])


@pytest.mark.parametrize(
    ("plan_step", "words"),
    [
        (lambda running, waiting, budget, seats: {}, "gave nobody anything"),
        (lambda running, waiting, budget, seats: {"stranger": 1}, "no request"),
        (lambda running, waiting, budget, seats: {seat.request_id: budget for seat in waiting}, "the budget is"),
        (lambda running, waiting, budget, seats: None, "TypeError"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_replaced(plan_step, words: str) -> None:
    notes, _ = served(Parts(scheduler_step=plan_step))
    assert len(notes) == 1
    assert words in notes[0]


def test_another_plan_is_really_followed() -> None:
    def one_at_a_time(running, waiting, budget, seats):
        first = (running or waiting)[0]
        return {first.request_id: min(first.num_tokens - first.num_computed_tokens, budget)}

    notes, batches = served(Parts(scheduler_step=one_at_a_time))
    assert notes == []
    assert all(len(batch.requests) == 1 for batch in batches)


def test_the_model_answers_victims_are_the_engines() -> None:
    ours = served(Parts(), num_kv_blocks=18)
    theirs = served(Parts(pick_victim=PICK_VICTIM), num_kv_blocks=18)
    assert any(batch.preempted for batch in ours[1])
    assert theirs[0] == []
    assert steps_of(theirs[1]) == steps_of(ours[1])


def test_another_victim_is_really_taken() -> None:
    notes, batches = served(Parts(pick_victim=first_unplanned), num_kv_blocks=19)
    assert notes == []
    assert steps_of(batches) != steps_of(served(Parts(), num_kv_blocks=19)[1])


@pytest.mark.parametrize(
    ("pick_victim", "words"),
    [
        (lambda running, planned: None, "no running request"),
        (lambda running, planned: next(each for each in running if each.request_id in planned), "in this step"),
    ],
)
def test_a_victim_that_cannot_be_is_replaced(pick_victim, words: str) -> None:
    notes, _ = served(Parts(pick_victim=pick_victim), num_kv_blocks=18)
    assert len(notes) == 1
    assert words in notes[0]


def test_the_model_answers_blocks_serve_also_when_they_run_out() -> None:
    assert served(Parts(block_pool=BLOCK_POOL), num_kv_blocks=24)[0] == []


def test_a_pool_that_leaks_is_replaced() -> None:
    notes, _ = served(Parts(block_pool=Leaking))
    assert "block pool" in notes[0]
    assert "num_free" in notes[0]


def test_the_model_answers_names_find_what_the_engines_find() -> None:
    ours, theirs = (served(parts, prompts=RETURNING)[1] for parts in (Parts(), Parts(block_names=BLOCK_NAMES)))
    assert steps_of(theirs) == steps_of(ours)
    uncached = served(Parts(), prompts=RETURNING, enable_prefix_caching=False)[1]
    assert steps_of(ours) != steps_of(uncached)


@pytest.mark.parametrize(
    ("block_names", "words"),
    [
        (lambda ids, size, extra: [tuple(ids[i : i + size]) for i in range(0, len(ids), size)], "not all before them"),
        (lambda ids, size, extra: [object() for _ in range(len(ids) // size)], "was named"),
        (lambda ids, size, extra: [], "0 names"),
    ],
)
def test_names_that_mean_something_else_are_replaced(block_names, words: str) -> None:
    prompts = [[1, 2, 3, 4] * 3, *RETURNING]  # in the first, one block comes three times
    notes, _ = served(Parts(block_names=block_names), prompts=prompts)
    assert len(notes) == 1
    assert words in notes[0]


class HeadsFirst(EVICTION_ORDER):
    def release(self, block_ids) -> None:
        super().release(block_ids[::-1])


class GivesTheSameAgain(EVICTION_ORDER):
    def evict(self, count: int) -> list[int]:
        return list(self.order)[:count]


def test_the_model_answers_eviction_order_is_the_engines() -> None:
    ours, theirs, heads_first = (
        served(Parts(eviction_order=order), num_kv_blocks=22, prompts=RETURNING)
        for order in (None, EVICTION_ORDER, HeadsFirst)
    )
    assert theirs[0] == heads_first[0] == []
    assert steps_of(theirs[1]) == steps_of(ours[1])
    assert steps_of(heads_first[1]) != steps_of(ours[1]), "another order is really followed"


def test_an_eviction_order_that_gives_blocks_in_use_is_replaced() -> None:
    notes, _ = served(Parts(eviction_order=GivesTheSameAgain), num_kv_blocks=22, prompts=RETURNING)
    assert len(notes) == 1
    assert "eviction order" in notes[0]


def test_drafts_of_a_proposer_save_steps() -> None:
    plain = served(Parts())[1]
    notes, batches = served(Parts(proposer=right_guess))
    assert notes == []
    assert len(batches) < len(plain)
    assert "at most" in served(Parts(proposer=lambda tokens, k: [0] * (k + 1)))[0][0]


def drafted_row() -> tuple[torch.Tensor, DraftPosition]:
    params = SamplingParams(temperature=1.0)
    request = Request("r", [1, 2], params, Timeline(0.0), draft=Draft([3], torch.full((1, 5), 0.2)))
    return torch.tensor([[0.0, 1.0, 2.0, 0.5, 0.0]]), DraftPosition(request, 0)


def test_a_learners_verify_decides_about_drafts() -> None:
    logits, row = drafted_row()
    seen, notes = [], []

    def verify(target, proposal, drafts, rng):
        seen.append((target.shape, proposal.shape, drafts))
        return [2]

    sampler = CheckingSampler(verify, FallbackGuard("sampler", notes), RejectionSampler())
    assert sampler(logits, [row]).token_ids == [2]
    assert seen == [((2, 5), (1, 5), [3])]
    broken = CheckingSampler(lambda *_: [99], FallbackGuard("sampler", notes), RejectionSampler())
    assert broken(logits, [row]).token_ids == RejectionSampler()(logits, [row]).token_ids
    assert "99" in notes[0]


def test_the_model_answers_verify_is_distributed_as_the_model() -> None:
    logits, row = drafted_row()
    notes: list[str] = []
    sampler = CheckingSampler(
        model_answer("rejection-sampler")["verify"], FallbackGuard("sampler", notes), RejectionSampler()
    )
    rng = np.random.default_rng(0)
    counts = np.zeros(5)
    for _ in range(1000):
        row.request.draft.token_ids[0] = int(rng.integers(5))
        counts[sampler(logits, [row]).token_ids[0]] += 1
    wanted = torch.softmax(logits[0], 0).numpy()
    assert notes == []
    assert np.abs(counts / 1000 - wanted).max() < 6 * np.sqrt(0.25 / 1000)


def test_the_lab_shows_both(tiny_llama_path) -> None:
    lab = OpenLab(short=True, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    try:
        ours = lab.run("burst")
        yours = lab.run_with("burst", scheduler_step=PLAN_STEP, block_pool=BLOCK_POOL)
        engine = lab._engine
        assert lab.notes == []
        shown = lab.beside(ours, yours)
        total = len(yours.outputs)
        assert f"{total} of {total} answers" in shown.text
        lab.run("burst")
        assert type(engine._engine.scheduler) is Scheduler
    finally:
        lab.close()

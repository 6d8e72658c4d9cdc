"""A learner's parts serve requests; one that breaks a rule is replaced, and the answers stay right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runner import FakeRunner, drain, expected_output, greedy
from wrong_answers import names_of

from course.grading.exercises.continuous_batching_step import right_plan
from course.grading.plug_in import OpenLab, Parts, build_engine
from course.lab.run import Run
from minillm import EngineConfig
from minillm.core.scheduler import Scheduler
from minillm.core.timeline import VirtualClock

PROMPTS = [list(range(10 * i, 10 * i + length)) for i, length in enumerate((30, 5, 17, 60, 9, 41))]


PLAN_STEP = names_of("continuous-batching-step")["plan_step"]
BLOCK_POOL = names_of("block-pool")["BlockPool"]
PICK_VICTIM = names_of("preemption")["pick_victim"]
BLOCK_NAMES = names_of("prefix-hash-chain")["block_names"]
RADIX_TREE = names_of("radix-tree")["RadixTree"]
EVICTION_ORDER = names_of("lru-eviction")["EvictionOrder"]
ATTENTION = names_of("paged-attention")["paged_attention"]
ROUTE = names_of("expert-routing")["route"]
MATCHER = names_of("grammar-mask")["Matcher"]
AB = {"start": "s", "final": {"end"}, "next": {"s": {"a": "s", "b": "end"}}}
SHARED = [[7, 8, 9, 10, 11, 12, 13, 14] * 2, [3, 1, 4, 1, 5, 9, 2, 6] * 2, list(range(40))]
RETURNING = [[*SHARED[i % 3], *range(i, i + 5)] for i in (0, 1, 0, 2, 1, 0, 2, 0, 1)]
"""Prompts of which some have a common beginning: a cache that is too small must forget some of them."""
SAME = {"prompts": [[1, 2, 3, 4] * 3, *RETURNING]}
"""In the first, one block comes three times."""

TIGHT = {
    "num_kv_blocks": 10,
    "prompts": [[i] * n for i, n in enumerate((12, 7, 14, 8, 14))],
    "enable_prefix_caching": False,
}
"""Requests take each other's blocks, and one that was preempted waits before those that came after it."""


class Leaking(BLOCK_POOL):
    def release(self, block_ids) -> None:
        super().release(block_ids[1:])


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


def one_at_a_time(running: list, waiting: list, budget: int, seats: int) -> dict[str, int]:
    first = (running or waiting)[0]
    return {first.request_id: min(first.num_tokens - first.num_computed_tokens, budget)}


class HeadsFirst(EVICTION_ORDER):
    def release(self, block_ids) -> None:
        super().release(block_ids[::-1])


class GivesTheSameAgain(EVICTION_ORDER):
    def evict(self, count: int) -> list[int]:
        return list(self.order)[:count]


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        (Parts(scheduler_step=PLAN_STEP), {}),
        (Parts(scheduler_step=PLAN_STEP), TIGHT),
        (Parts(scheduler_step=right_plan), {"num_kv_blocks": 400}),
        (Parts(pick_victim=PICK_VICTIM), {"num_kv_blocks": 18}),
        (Parts(block_names=BLOCK_NAMES), {"prompts": RETURNING}),
        (Parts(eviction_order=EVICTION_ORDER), {"num_kv_blocks": 22, "prompts": RETURNING}),
    ],
    ids=["plan", "plan, with preemptions", "oracle of plans", "victim", "names", "eviction order"],
)
def test_a_right_part_does_what_the_engines_own_does(parts: Parts, fields: dict) -> None:
    notes, batches = served(parts, **fields)
    assert notes == []
    assert steps_of(batches) == steps_of(served(Parts(), **fields)[1])


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        (Parts(scheduler_step=one_at_a_time), {}),
        (Parts(pick_victim=lambda run, plan: next(r for r in run if r.request_id not in plan)), {"num_kv_blocks": 19}),
        (Parts(eviction_order=HeadsFirst), {"num_kv_blocks": 22, "prompts": RETURNING}),
    ],
    ids=["plan", "victim", "eviction order"],
)
def test_another_part_is_really_followed(parts: Parts, fields: dict) -> None:
    notes, batches = served(parts, **fields)
    assert notes == []
    assert steps_of(batches) != steps_of(served(Parts(), **fields)[1])


def test_the_runs_above_preempt_and_find_prefixes() -> None:
    assert any(batch.preempted for batch in served(Parts(), num_kv_blocks=18)[1])
    cached, uncached = (served(Parts(), prompts=RETURNING, enable_prefix_caching=on)[1] for on in (True, False))
    assert steps_of(cached) != steps_of(uncached)


@pytest.mark.parametrize(
    ("parts", "fields", "words"),
    [
        (Parts(scheduler_step=lambda *_: {}), {}, "scheduler step"),
        (Parts(scheduler_step=lambda *_: {"stranger": 1}), {}, "stranger"),
        (Parts(scheduler_step=lambda _, waiting, budget, __: {s.request_id: budget for s in waiting}), {}, "budget"),
        (Parts(scheduler_step=lambda *_: None), {}, "TypeError"),
        (Parts(pick_victim=lambda *_: None), {"num_kv_blocks": 18}, "None"),
        (
            Parts(pick_victim=lambda running, planned: next(each for each in running if each.request_id in planned)),
            {"num_kv_blocks": 18},
            "in this step",
        ),
        (Parts(block_pool=Leaking), {}, "num_free"),
        (Parts(block_names=lambda ids, size, _: [str(ids[i:][:size]) for i in range(0, len(ids), size)]), SAME, "two"),
        (Parts(block_names=lambda ids, size, _: [object() for _ in range(len(ids) // size)]), SAME, "before"),
        (Parts(block_names=lambda *_: []), SAME, "0 names"),
        (Parts(prefix_tree=lambda: type("Forgets", (RADIX_TREE,), {"insert": lambda *_: 0})()), SAME, "does not find"),
        (Parts(eviction_order=GivesTheSameAgain), {"num_kv_blocks": 22, "prompts": RETURNING}, "eviction order"),
    ],
)
def test_a_part_that_breaks_a_rule_is_replaced(parts: Parts, fields: dict, words: str) -> None:
    notes, _ = served(parts, **fields)
    assert len(notes) == 1
    assert words in notes[0]


def test_the_model_answers_blocks_serve_also_when_they_run_out() -> None:
    assert served(Parts(block_pool=BLOCK_POOL), num_kv_blocks=24)[0] == []


def lab_of(path: Path) -> Iterator[OpenLab]:
    lab = OpenLab(short=True, model=str(path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def open_lab(tiny_llama_path: Path) -> Iterator[OpenLab]:
    yield from lab_of(tiny_llama_path)


@pytest.fixture(scope="module")
def moe(tiny_moe_path: Path) -> Iterator[OpenLab]:
    yield from lab_of(tiny_moe_path)


def test_the_lab_shows_both(open_lab: OpenLab) -> None:
    ours = open_lab.run("burst")
    yours = open_lab.run_with("burst", scheduler_step=PLAN_STEP, block_pool=BLOCK_POOL)
    engine = open_lab._engine
    assert open_lab.notes == []
    total = len(yours.outputs)
    shown = open_lab.beside(ours, yours)
    assert f"{total} of {total} answers" in shown.text and "thin outline: built-in run" in shown.html
    open_lab.run("burst")
    assert type(engine._engine.scheduler) is Scheduler


def test_a_tree_that_finds_nothing_has_every_token_computed() -> None:
    def computed(parts: Parts) -> int:
        notes, batches = served(parts, prompts=RETURNING)
        assert notes == []
        return sum(sum(step.values()) for step in steps_of(batches))

    assert computed(Parts(prefix_tree=RADIX_TREE)) == computed(Parts()) < computed(Parts(prefix_tree=NoMemory))


class NoMemory(RADIX_TREE):
    """Finds a sequence only once it has been inserted whole in the same breath."""

    def insert(self, tokens: list[int]) -> int:
        self.last = list(tokens)
        return super().insert(tokens)

    def match(self, tokens: list[int]) -> int:
        found, self.last = len(tokens) if tokens == getattr(self, "last", None) else 0, None
        return found


def same_answers(ours: Run, yours: Run) -> bool:
    return [each.token_ids for each in ours.outputs] == [each.token_ids for each in yours.outputs]


def test_the_model_answers_in_the_real_model_give_the_engines_tokens(open_lab: OpenLab, moe: OpenLab) -> None:
    for lab, part, answer in ((open_lab, "attention", ATTENTION), (moe, "router", ROUTE)):
        calls: list[int] = []

        def counted(rows, *others, answer=answer, calls=calls):
            calls.append(len(rows))
            return answer(rows, *others)

        yours = lab.run_with("burst", **{part: counted})
        assert lab.notes == []
        assert 1 in calls
        assert max(calls) > 1
        assert same_answers(lab.run("burst"), yours)
        num_calls = len(calls)
        lab.run("burst")
        assert len(calls) == num_calls  # the next run is the engine's own again


def test_another_one_in_the_real_model_is_really_used(open_lab: OpenLab, moe: OpenLab) -> None:
    def smallest(logits, k, normalize):
        return ROUTE(-logits, k, normalize)

    for lab, parts in ((open_lab, {"attention": lambda query, *_: np.zeros_like(query)}), (moe, {"router": smallest})):
        yours = lab.run_with("burst", **parts)
        assert lab.notes == []
        assert not same_answers(lab.run("burst"), yours)


def test_every_answer_follows_the_grammar(open_lab: OpenLab) -> None:
    yours = open_lab.run_with("burst", matcher=MATCHER, grammar=AB)
    assert open_lab.notes == []
    texts = [each.text for each in yours.outputs]
    assert texts
    assert all(text.rstrip("b") == "a" * len(text.rstrip("b")) and text.count("b") <= 1 for text in texts)


@pytest.mark.parametrize(
    ("part", "broken", "words"),
    [
        ("attention", lambda query, *others: query[:, :1], "has shape"),
        ("attention", lambda query, *others: query * np.nan, "not finite"),
        ("attention", lambda query: query, "TypeError"),
        ("router", lambda logits, k, _: (logits[:, :1], logits[:, :1]), "experts and shares are"),
        ("router", lambda logits, k, _: (np.full((len(logits), k), 99), np.ones((len(logits), k))), "does not exist"),
        ("matcher", type("Silent", (MATCHER,), {"allowed": lambda self: [False]}), "no token"),
    ],
)
def test_one_in_the_real_model_that_breaks_a_rule_is_replaced(
    open_lab: OpenLab, moe: OpenLab, part: str, broken: Any, words: str
) -> None:
    lab = moe if part == "router" else open_lab
    yours = lab.run_with("burst", **{part: broken}, grammar=AB)
    assert {words in note for note in lab.notes} == {True}
    assert same_answers(lab.run("burst"), yours)

"""A part of the engine fails, at one step or at every step: whose request it was ends, and nobody else's."""

import random
from collections.abc import Callable
from typing import Any

import fake_runner
import pytest
import torch
from fake_runner import GuessingProposer, drain, expected_output, greedy
from robustness.faults import Injected, TickingClock
from robustness.judge import check_at_rest, check_timeline

from minillm.core.request import FinishReason
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput

BLOCK = 4
PROMPTS = [[i, i + 1, i + 2, i + 3, i + 4, 7, 7] for i in range(6)]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"enable_prefix_caching": False},
    "prefix cache": {},
    "swap": {"preemption": "swap", "num_kv_blocks": 8},
    "recompute": {"num_kv_blocks": 8},
    "running ahead": {"async_scheduling": True},
    "drafts": {"speculative": {"method": "ngram", "k": 3, "min_output_tokens": 1, "acceptance_floor": 0}},
}
FAILURES: list[Callable[[], Exception]] = [
    lambda: Injected("the runner broke"),
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError,
]


class Letters:
    """A tokenizer whose token i is one letter; it fails at the tokens it is told."""

    def __init__(self, fails_at: Callable[[int], bool] = lambda token: False) -> None:
        self.fails_at = fails_at

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        if any(map(self.fails_at, token_ids)):
            raise Injected("no such piece")
        return "".join(chr(0x100 + token) for token in token_ids)


def make_engine(num_kv_blocks: int = 64, **fields: Any) -> Engine:
    fields = {"max_num_seqs": 3, "max_model_len": 64, **fields}
    return fake_runner.make_engine(num_kv_blocks, 32, proposer=GuessingProposer(), **fields)


def ask_all(engine: Engine, suffix: str = "") -> None:
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, greedy(8), request_id=f"r{i}{suffix}")


def check_all_right(outputs: dict[str, RequestOutput], suffix: str = "") -> None:
    for i, prompt in enumerate(PROMPTS):
        assert outputs[f"r{i}{suffix}"].token_ids == expected_output(prompt, 8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("step", [0, 1, 2, 4, 6])
def test_one_step_fails(way: str, error: Callable[[], Exception], step: int) -> None:
    engine = make_engine(**WAYS[way])
    ask_all(engine)
    outputs: dict[str, RequestOutput] = {}
    for _ in range(step):
        outputs |= {output.request_id: output for output in engine.step()}
    engine.runner.fail_next = error()
    outputs |= drain(engine)
    failed = [output for output in outputs.values() if output.finish_reason is FinishReason.ERROR]
    assert failed and len(failed) <= 3, "only those in that step"
    for output in outputs.values():
        index = int(output.request_id[1:])
        right = expected_output(PROMPTS[index], 8)
        assert output.token_ids == right[: len(output.token_ids)]
        assert output in failed or output.token_ids == right
        check_timeline(output.completions[0].timeline)
    assert all(type(error()).__name__ in output.completions[0].error for output in failed)
    check_at_rest(engine)
    ask_all(engine, " again")
    check_all_right(drain(engine), " again")


@pytest.mark.parametrize("way", WAYS)
def test_every_step_fails_until_none_does(way: str) -> None:
    engine = make_engine(**WAYS[way])
    launch = engine.runner.launch
    engine.runner.launch = lambda batch: 1 / 0
    ask_all(engine)
    outputs = drain(engine)
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.ERROR}
    assert len(outputs) == len(PROMPTS), "the queued ones were told, too"
    check_at_rest(engine)
    engine.runner.launch = launch
    ask_all(engine, " again")
    check_all_right(drain(engine), " again")


# ------------------------------------------------------------------------ text


def test_a_token_without_a_text_ends_its_request_only() -> None:
    engine = make_engine()
    bad = expected_output(PROMPTS[1], 8)[3]
    assert not any(bad in expected_output(prompt, 8) for prompt in (PROMPTS[0], PROMPTS[2]))
    engine.tokenizer = Letters(lambda token: token == bad)
    ask_all(engine)
    outputs = drain(engine)
    output = outputs.pop("r1")
    assert output.finish_reason is FinishReason.ERROR and "no such piece" in output.completions[0].error
    assert len(output.token_ids) == output.completions[0].timeline.num_tokens == 4
    assert {other.finish_reason for other in outputs.values()} == {FinishReason.LENGTH}
    check_at_rest(engine)


def test_a_text_that_cannot_be_finished_ends_all_the_same() -> None:
    engine = make_engine()
    engine.tokenizer = Letters()
    ask_all(engine)
    for group in engine.outputs.groups.values():
        group.sequences[0].detokenizer.finish = lambda: 1 / 0
    check_all_right(drain(engine))
    check_at_rest(engine)


def test_a_prompt_without_a_text_comes_in_whole_or_not_at_all() -> None:
    engine = make_engine()
    calls = iter([False, True])
    engine.tokenizer = Letters(lambda token: token == 9 and next(calls))
    with pytest.raises(Injected):
        engine.add_request([9], greedy(4, n=2), request_id="a")
    check_at_rest(engine)
    assert not engine.scheduler.waiting


def test_all_outputs_of_a_request_may_time_out_in_one_stroke() -> None:
    # Regression, found by the soak: the step raised, which ended the engine's thread and everybody's requests.
    engine = make_engine(queue_timeout_s=0.05, max_num_seqs=1)
    engine.add_request([1, 2], greedy(30), request_id="first")
    engine.add_request([3, 4], greedy(4, n=3), request_id="late")
    outputs = drain(engine)
    assert [completion.finish_reason for completion in outputs["late"].completions] == [FinishReason.TIMEOUT] * 3
    assert outputs["first"].token_ids == expected_output([1, 2], 30)
    check_at_rest(engine)


# ------------------------------------------------------------------------ time


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("coarse", [True, False])
def test_phases_tile_on_any_clock(way: str, coarse: bool) -> None:
    """One that stands still for many looks, as with a tick of 16 ms, or none of whose looks are equal."""
    engine = make_engine(**WAYS[way])
    clock = TickingClock(random.Random(0), coarse)
    engine.core.clock = clock
    if engine.config.speculative:
        engine.speculator.clock = clock
    engine.runner.clock = Both(clock)
    ask_all(engine)
    outputs = drain(engine)
    check_all_right(outputs)
    stamps = [output.completions[0].timeline for output in outputs.values()]
    for timeline in stamps:
        check_timeline(timeline)
    if coarse:
        assert any(0.0 in timeline.phases().values() for timeline in stamps), "no stamps were equal: a fine clock"


class Both(VirtualClock):
    """For the fake runner, which advances its clock: this one moves by itself."""

    def __init__(self, clock: TickingClock) -> None:
        self.clock = clock

    def now(self) -> float:
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        pass

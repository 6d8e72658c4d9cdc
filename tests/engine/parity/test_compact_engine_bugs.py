"""Bugs that compact engines are known for, each seen from outside: through the engine, on a real model."""

from typing import Any

import pytest
from integrity import check_engine

from minillm import SamplingParams
from minillm.core.errors import PromptTooLongError
from minillm.core.request import FinishReason
from minillm.frontend.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def run(engine: Any) -> dict[str, RequestOutput]:
    """Step until nobody is left; the final outputs by request id."""
    outputs = {}
    while engine.has_unfinished:
        outputs |= {output.request_id: output for output in engine.step() if output.finished}
        check_engine(engine)
    return outputs


def ask(engine: Any, prompt: Any, params: SamplingParams = GREEDY, **options: Any) -> RequestOutput:
    request_id = engine.add_request(prompt, params, stream=False, **options)
    return run(engine)[request_id]


@pytest.fixture(scope="module")
def ids(lively: Any) -> list[int]:
    """Plenty of ordinary token ids, to cut prompts from."""
    return lively.reference.prompt_ids["3000 tokens"]


@pytest.mark.parametrize("limit", [{"num_kv_blocks": 4}, {"max_model_len": 64, "num_kv_blocks": 64}], ids=str)
def test_prompt_that_can_never_fit_is_refused_and_harms_nobody(
    lively: Any, ids: list[int], limit: dict[str, int]
) -> None:
    engine = lively.engine(**limit)
    engine.add_request(ids[:20], GREEDY, request_id="bystander", stream=False)
    for length in (64, 65, 2000):
        with pytest.raises(PromptTooLongError, match=rf"{length} tokens.*shorten"):
            engine.add_request(ids[:length], GREEDY)
    assert len(run(engine)["bystander"].token_ids) == GREEDY.max_tokens
    assert len(ask(engine, ids[:63]).token_ids) == 1, "one more token fits, so that is what it gets"
    assert engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_lone_request_that_outgrows_the_pool_ends_by_length(lively: Any, ids: list[int], preemption: str) -> None:
    engine = lively.engine(num_kv_blocks=3, preemption=preemption)
    output = ask(engine, ids[:30], SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == 3 * 16 - 30
    assert engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("length", [16, 32, 33, 48])
@pytest.mark.parametrize("chunk", [16, 1024])
def test_prompt_that_is_cached_whole_still_yields_logits(lively: Any, ids: list[int], length: int, chunk: int) -> None:
    engine = lively.engine(num_kv_blocks=64, max_num_seqs=8, max_num_batched_tokens=chunk)
    cold, warm = ask(engine, ids[:length]), ask(engine, ids[:length])
    assert cold.num_cached_tokens == 0
    assert warm.num_cached_tokens == (length - 1) // 16 * 16
    assert warm.token_ids == cold.token_ids


def test_two_equal_prompts_in_one_step_share_blocks_that_the_step_itself_fills(lively: Any, ids: list[int]) -> None:
    engine = lively.engine(num_kv_blocks=64)
    names = [engine.add_request(ids[:40], GREEDY, stream=False) for _ in range(3)]
    outputs = run(engine)
    assert [outputs[name].num_cached_tokens for name in names] == [0, 32, 32]
    alone = ask(lively.engine(num_kv_blocks=64, enable_prefix_caching=False), ids[:40])
    assert all(outputs[name].token_ids == alone.token_ids for name in names)


@pytest.mark.parametrize("preemption", ["recompute", pytest.param("swap", marks=pytest.mark.slow)])
def test_preempted_requests_that_hit_their_own_blocks_again_go_on_unchanged(
    lively: Any, ids: list[int], preemption: str
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    prompts = [ids[:33], ids[:33], [*ids[:16], *ids[100:130]], ids[200:240]]
    roomy = lively.engine(num_kv_blocks=256, enable_prefix_caching=False)
    expected = [ask(roomy, prompt, params).token_ids for prompt in prompts]
    engine = lively.engine(num_kv_blocks=9, preemption=preemption)
    names = [engine.add_request(prompt, params, stream=False) for prompt in prompts]
    outputs = run(engine)
    assert engine.scheduler.num_preemptions > 0
    assert [outputs[name].token_ids for name in names] == expected
    assert engine.scheduler.kv.pool.num_used == 0


def test_decodes_go_on_while_a_long_prompt_is_computed(lively: Any, ids: list[int]) -> None:
    engine = lively.engine(num_kv_blocks=256, max_num_batched_tokens=128)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    engine.add_request(ids[:10], params, request_id="writer", stream=False)
    engine.step()
    engine.add_request(ids, GREEDY, request_id="long", stream=False)
    run(engine)
    prefill_steps = [step for step in engine.steps if any(s.request_id == "long" and s.is_prefill for s in step.shares)]
    assert len(prefill_steps) >= len(ids) // 128
    for step in prefill_steps:
        assert any(share.request_id == "writer" for share in step.shares), f"step {step.step_id} left it waiting"
        assert step.num_tokens <= 128


def test_temperature_zero_is_greedy_whatever_the_other_filters_say(lively: Any, ids: list[int]) -> None:
    engine = lively.engine(num_kv_blocks=64)
    filtered = SamplingParams(temperature=0.0, top_k=50, top_p=0.9, min_p=0.05, seed=7, max_tokens=8, ignore_eos=True)
    assert ask(engine, ids[:40], filtered).token_ids == ask(engine, ids[:40]).token_ids


def test_stop_strings_and_stop_tokens_end_a_request(lively: Any, ids: list[int]) -> None:
    engine = lively.engine(num_kv_blocks=64)
    free = ask(engine, ids[:40])
    word = free.text[3:6]
    stopped = ask(engine, ids[:40], GREEDY.replace(stop=word))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text == free.text[: free.text.index(word)]
    by_id = ask(engine, ids[:40], GREEDY.replace(stop_token_ids=free.token_ids[2]))
    end = free.token_ids.index(free.token_ids[2]) + 1
    assert (by_id.finish_reason, by_id.token_ids) == (FinishReason.STOP, free.token_ids[:end])


def test_n_outputs_are_n_different_samples_of_one_prompt(lively: Any, ids: list[int]) -> None:
    engine = lively.engine(num_kv_blocks=64)
    params = SamplingParams(temperature=1.0, seed=1, n=4, max_tokens=8, ignore_eos=True)
    output = ask(engine, ids[:40], params)
    assert [len(completion.token_ids) for completion in output.completions] == [8] * 4
    assert len({tuple(completion.token_ids) for completion in output.completions}) > 1
    assert [c.token_ids for c in ask(engine, ids[:40], params).completions] == [c.token_ids for c in output.completions]


def test_penalties_change_what_is_written(lively: Any, ids: list[int]) -> None:
    """A strong penalty on what was said before leaves no token twice; without it the model repeats itself."""
    engine = lively.engine(num_kv_blocks=64)
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    plain = ask(engine, ids[:40], params).token_ids
    assert len(set(plain)) < len(plain)
    penalized = {
        name: ask(engine, ids[:40], params.replace(**{name: value})).token_ids
        for name, value in {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1e6}.items()
    }
    assert len(set(penalized["repetition_penalty"])) == 32
    assert len(set(penalized["frequency_penalty"])) > len(set(plain))
    assert all(tokens != plain for tokens in penalized.values())

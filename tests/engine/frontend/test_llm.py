"""LLM.generate: prompts of every kind, in order, all or none."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_engine

from minillm import LLM, SamplingParams
from minillm.core.errors import InvalidSamplingParamsError, QueueFullError
from minillm.frontend.errors import EmptyPromptError, InvalidPromptError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llama_path: Path) -> LLM:
    return LLM(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64)


def test_a_string_a_chat_and_ids_are_one_prompt_each(llm: LLM):
    chat = [{"role": "user", "content": "Hello"}]
    for prompt in ("Hello", chat, [1, 2, 3]):
        outputs = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert len(outputs) == 1 and len(outputs[0].token_ids) == 6
    text = llm.engine.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    as_chat, as_text = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in (chat, text))
    assert as_chat.prompt == text and as_text.prompt_token_ids == as_chat.prompt_token_ids


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM):
    prompts = [[i, i + 1, i + 2] for i in range(10)]
    lengths = [SamplingParams(temperature=0, max_tokens=1 + i % 4, ignore_eos=True) for i in range(10)]
    outputs = llm.generate(prompts, lengths, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == prompts
    assert [len(o.token_ids) for o in outputs] == [1 + i % 4 for i in range(10)]
    alone = [llm.generate(p, s, use_tqdm=False)[0].token_ids for p, s in zip(prompts, lengths)]
    assert [o.token_ids for o in outputs] == alone


def test_one_bad_prompt_and_none_of_them_runs(llm: LLM):
    with pytest.raises(EmptyPromptError):
        llm.generate(["fine", ""], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished
    check_engine(llm.engine)


def test_a_full_queue_refuses_the_whole_call(tiny_llama_path: Path):
    llm = LLM(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64, max_queue_len=2)
    with pytest.raises(QueueFullError):
        llm.generate([[1], [2], [3]], GREEDY, use_tqdm=False)
    assert len(llm.generate([[1], [2]], GREEDY, use_tqdm=False)) == 2


@pytest.mark.parametrize(
    "prompts",
    [None, 5, {"role": "user", "content": "Hello"}, iter(["a"]), {"a"}, torch.tensor([1, 2]), [1.5], [None], b"a"],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any):
    with pytest.raises(InvalidPromptError, match="a prompt is"):
        llm.generate(prompts, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("prompt", "templates", "says"),
    [
        ("a\ud800", [], r"U\+D800 is a surrogate"),
        ([{"role": "user", "content": "\udfff"}], [], r"U\+DFFF is a surrogate"),
        ([{"role": "user"}], [], "has no attribute 'content'.* a role and a content"),
        ([{"role": "user", "content": "a"}], [None], "no chat template: send the prompt as text"),
        ([{"role": "user", "content": "a"}], ["{% if %}"], "is no template .*fetch the model again"),
    ],
    ids=ascii,
)
def test_what_a_dependency_refuses_says_what_to_do(
    llm: LLM, prompt: Any, templates: list[str | None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for template in templates:
        monkeypatch.setattr(llm.engine.tokenizer, "chat_template", template)
    with pytest.raises(InvalidPromptError, match=says):
        llm.generate(prompt, GREEDY, use_tqdm=False)


@pytest.mark.parametrize("params", [{"temperature": 0}, ["greedy"], 5, "greedy"], ids=repr)
def test_what_are_no_params_are_refused(llm: LLM, params: Any):
    with pytest.raises(InvalidSamplingParamsError, match="SamplingParams"):
        llm.generate("a", params, use_tqdm=False)
    assert not llm.engine.has_unfinished


def test_as_many_params_as_prompts(llm: LLM):
    with pytest.raises(InvalidSamplingParamsError, match="2 prompts but 1"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)


def test_calls_from_several_threads_take_turns(llm: LLM):
    prompts = [[i, i + 1] for i in range(6)]
    expected = [llm.generate(prompt, GREEDY, use_tqdm=False)[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        outputs = threads.map(lambda prompt: llm.generate([prompt] * 3, GREEDY, use_tqdm=False), prompts, timeout=60)
        assert [[one.token_ids for one in three] for three in outputs] == [[ids] * 3 for ids in expected]

"""The model in a real browser tab: the engine's own tokens, from a page that says first what it will fetch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.pages import assert_clean, assert_fits, opened

from minillm import LLM, SamplingParams
from minillm.frontend.outputs import RequestOutput
from minillm.model.quantized import QuantizedLinear

pytestmark = [pytest.mark.browser, pytest.mark.slow]
START_MS, ANSWER_MS = 240_000, 240_000
TOKENS = 24
TIE = 0.04
"""Two tokens whose log-probabilities are closer than that are as good as tied: keys and values have 8 bits, and rows
that are multiplied have 16 in the tab, 24 in the engine."""
DONE = "[...document.querySelectorAll('.mm-chat button')].every(button => button.textContent === 'Send')"
ANSWERS = "[...document.querySelectorAll('.mm-said')].map(answer => answer.textContent)"


@pytest.fixture(scope="module")
def page(site: Path, address: str, browser: Any) -> Iterator[Any]:
    """The page of a visitor with a phone, who has let it fetch the model."""
    if not list(site.glob("model/*.bin")):
        pytest.skip("the model for the browser could not be had")
    visitor = browser.new_context(viewport={"width": 390, "height": 844})
    asked: list[str] = []
    told: list[str] = []
    visitor.on("request", lambda request: asked.append(request.url))
    chat = opened(visitor, f"{address}/chat.html", told)
    size = sum(file.stat().st_size for file in site.glob("model/*-*"))
    button = chat.get_by_role("button", name=f"Fetch the model ({size / 1e6:.0f} MB)")
    button.wait_for()
    assert not any("/model/weights" in url for url in asked)
    button.click()
    chat.wait_for_selector("[data-is-live=yes]", timeout=START_MS)
    yield chat
    assert told == []
    visitor.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    """The course's engine on this CPU, in its textbook's operations, with the same rounded weights."""
    llm = LLM(quantization="int4", max_model_len=512, num_kv_blocks=256, attention_backend="eager", fused_kernels=False)
    for module in llm.engine.loaded_model.decoder.modules():
        if isinstance(module, QuantizedLinear):
            module.dots = False  # rows in float32, not in bfloat16
    yield llm
    llm.engine.close()


def test_eight_chats_at_once_are_answered_by_the_engines_tokens(page: Any, engine: LLM) -> None:
    page.get_by_role("radio", name=str(TOKENS), exact=True).click()
    page.get_by_role("radio", name="8 times").click()
    page.get_by_role("button", name="Lock it").press("Enter")
    page.wait_for_selector("[aria-label='Chat 1']:focus")  # the focus goes on to the chat that goes first
    page.wait_for_selector(".mm-live-told:has-text('times the tokens a second')", timeout=ANSWER_MS)
    page.get_by_role("button", name="New conversations").click()
    page.wait_for_function(f"{ANSWERS}.length === 0")
    page.get_by_role("button", name="Send all eight").click()
    page.wait_for_function(f"{ANSWERS}.length === 8 && {DONE}", timeout=ANSWER_MS)
    asked = [each.get_attribute("value") for each in page.locator(".mm-chat input").all()]
    prompts = [[{"role": "user", "content": text}] for text in asked]
    expected = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=2))
    ties = [tie_at(text, output, engine) for text, output in zip(page.evaluate(ANSWERS), expected)]
    assert all(tie is None or tie < TIE for tie in ties), ties
    assert ties.count(None) >= 6, ties
    phases = page.locator(".mm-turns .mm-told").all_inner_texts()
    assert len(phases) == 8 and all(words.startswith("queue") and "tokens)" in words for words in phases)


def tie_at(text: str, output: RequestOutput, engine: LLM) -> float | None:
    """How much likelier the engine's best token was than its second, where another text leaves the engine's; None if
    it's the same text."""
    if text == output.text:
        return None
    tokenizer, logprobs = engine.engine.tokenizer, output.completions[0].logprobs or []
    heads = (tokenizer.decode(output.token_ids[: i + 1]) for i in range(len(output.token_ids)))
    first = next(i for i, head in enumerate(heads) if not text.startswith(head))
    best, second = sorted(logprobs[first].top.values(), reverse=True)
    return best - second


def test_a_second_visit_fetches_no_weights(page: Any) -> None:
    asked: list[str] = []
    again = page.context.new_page()
    again.on("request", lambda request: asked.append(request.url))
    again.goto(page.url)
    again.get_by_role("button", name="Start the model").wait_for()
    again.close()
    assert not any("/model/weights" in url for url in asked)


def test_a_second_turn_finds_the_first_in_its_blocks_and_an_answer_can_be_stopped(page: Any) -> None:
    page.get_by_role("radio", name="96", exact=True).click()
    page.get_by_role("button", name="Send", exact=True).first.click()
    page.wait_for_function(f"{ANSWERS}[1].length > 12", timeout=ANSWER_MS)  # the first chat's second answer
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function(DONE, timeout=ANSWER_MS)
    assert page.locator(".mm-turns .mm-told").count() == 9
    assert_fits(page)
    assert_clean(page)

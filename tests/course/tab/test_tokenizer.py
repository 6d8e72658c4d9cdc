"""The tokenizer in the tab says what the library says."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.tab.model.tokenizer import BytePairTokenizer
from minillm.model.checkpoints import load_tokenizer

TEXTS = (
    "",
    "The capital of France is",
    "I'll say it's DON'T, they're 'some' and O'Malley's; we've 'dared",
    "  two  spaces,\ttabs \n\n and lines\r\n  \n x ",
    "1234 and 3.14, x²=½ Ⅷ ٣٤",
    "naïve café — “quotes” … 日本語 テキスト 🙂👩‍👩‍👧 ̈combining e\u0301",
    "a\u00a0b\u2003c\u200bd\x1ce\x85f\u3000g \u3000",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_st",
    "def f(x):\n    return {'a': [1, 2_000], \"b\": x**2}  # why?",
    "supercalifragilisticexpialidocious" * 5,
)


@pytest.fixture(scope="module")
def both(smollm_path: Path) -> tuple:
    return BytePairTokenizer((smollm_path / "tokenizer.json").read_text("utf-8")), load_tokenizer(smollm_path)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_the_librarys_tokens_and_back(both: tuple, text: str) -> None:
    ours, library = both
    token_ids = library.encode(text, add_special_tokens=False)
    assert ours.encode(text) == token_ids
    for skip in (True, False):
        assert ours.decode(token_ids, skip_special_tokens=skip) == library.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_does(both: tuple, text: str) -> None:
    ours, library = both
    assert ours.encode(text) == library.encode(text, add_special_tokens=False)


def test_a_conversation_reads_as_the_models_template_has_it(both: tuple) -> None:
    ours, library = both
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    for messages in (turns[:1], [{"role": "system", "content": "Be brief"}, *turns, *turns[:1]]):
        expected = library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.apply_chat_template(messages) == expected

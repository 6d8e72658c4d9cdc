"""Log-probabilities belong to tokens. Text is no substitute: tokens share it, or are only a part of a character."""

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from frontend.test_detokenizer import Bytes, cuts, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from server.running import MODEL, Running

from minillm.core.request import TokenLogprob
from minillm.frontend.detokenizer import Detokenizer
from minillm.model.loader import LoadedModel
from minillm.server.logprobs import TextOffsets, TokenTexts, completion_logprobs

VOCABULARY = ["", "", "A", "<0x41>", "<0xE2>", "<0x80>", "a", "A", "\ufffd"]


def decode(ids: list[int], **_: Any) -> str:
    return "".join(
        {"<0x41>": "A", "<0xE2>": "\ufffd", "<0x80>": "\ufffd"}.get(VOCABULARY[i], VOCABULARY[i]) for i in ids
    )


@given(
    sampled=st.sampled_from(range(len(VOCABULARY))), top=st.lists(st.sampled_from(range(len(VOCABULARY))), unique=True)
)
def test_no_two_tokens_share_an_entry(sampled: int, top: list[int]) -> None:
    texts = TokenTexts(SimpleNamespace(id_to_token=VOCABULARY.__getitem__, decode=decode))
    entry = TokenLogprob(sampled, -sampled / 7, {token: -token / 7 for token in top})
    shaped = completion_logprobs([entry], texts, [0])
    [told], [name] = shaped["top_logprobs"], shaped["tokens"]
    assert list(told.values()) == [-token / 7 for token in dict.fromkeys([*top, sampled])], (
        "one for each, and each its own"
    )
    assert told[name] == entry.logprob == shaped["token_logprobs"][0]


def test_names_of_tokens_are_openais_and_vllms() -> None:
    texts = TokenTexts(SimpleNamespace(id_to_token=VOCABULARY.__getitem__, decode=decode))
    every = TokenLogprob(2, -1.0, dict.fromkeys(range(len(VOCABULARY)), -1.0))
    assert list(completion_logprobs([every], texts, [0])["top_logprobs"][0]) == [
        "",
        "token_id:1",
        "A",
        "bytes:A",
        "bytes:\\xe2",
        "bytes:\\x80",
        "a",
        "token_id:7",
        "\ufffd",
    ]


@given(text=texts.filter(lambda text: "\ufffd" not in text), cuts=cuts)
@settings(max_examples=300)
def test_a_token_begins_at_the_character_that_its_first_byte_belongs_to(text: str, cuts: list[int]) -> None:
    tokenizer = Bytes(text.encode(), cuts)
    starts = accumulate(map(len, tokenizer.pieces), initial=0)
    characters = [index for index, character in enumerate(text) for _ in character.encode()]
    offsets = TextOffsets(Detokenizer(tokenizer, [])).add(tokenizer.ids)
    assert offsets == [characters[start] for start, _ in zip(starts, tokenizer.ids)]


@given(ids=st.lists(st.integers(0, 49_151), max_size=30))
def test_tokens_stand_where_they_are_said_to_be(tiny_model: LoadedModel, ids: list[int]) -> None:
    """Any tokens, which mostly make no valid text, and special ones among them."""
    detokenizer, texts = Detokenizer(tiny_model.tokenizer, [1]), TokenTexts(tiny_model.tokenizer)
    text = "".join([*map(detokenizer.add, ids), detokenizer.finish()])
    offsets = texts.offsets([1]).add(ids)
    assert offsets == sorted(offsets) and all(offset <= len(text) for offset in offsets)
    special = {token for token, added in tiny_model.tokenizer.added_tokens_decoder.items() if added.special}
    for token, offset in zip(ids, offsets):
        shown, raw = texts.look_up(token)
        if shown.encode() == raw and token not in special:
            assert text[offset:].startswith(shown)


FORCED = "👋🏽 hello 日本語, e\u0301 \ufffd end"


@pytest.mark.parametrize("stop", [None, "hello", "本語,", " "])
def test_completions_whole_and_streamed(server: Running, stop: str | None) -> None:
    asked = {"prompt": ["One", "Two"], "n": 2, "logprobs": 5, "max_tokens": 60, "temperature": 0, "stop": stop}
    asked |= {"model": MODEL, "extra_body": {"guided_choice": [FORCED]}}
    whole = server.client().completions.create(**asked)
    streamed: list[dict[str, Any]] = [{} for _ in whole.choices]
    for chunk in server.client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            for name, values in choice.logprobs.model_dump().items():
                streamed[choice.index].setdefault(name, []).extend(values)
    for choice in whole.choices:
        assert choice.text == FORCED.partition(stop or "nowhere")[0]
        told = choice.logprobs
        for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs):
            assert top[token] == logprob and len(top) == 5 + (logprob < sorted(top.values())[-5])
        for token, offset in zip(told.tokens, told.text_offset):
            assert offset <= len(choice.text)
            if not token.startswith(("bytes:", "<|")):
                assert token.startswith(choice.text[offset : offset + len(token)]), (
                    "a stop string cuts the last ones off"
                )
        assert told.text_offset[-2] <= len(choice.text) <= told.text_offset[-2] + 12
        told_in_pieces = streamed[choice.index]
        assert [min(at, len(choice.text)) for at in told_in_pieces["text_offset"]] == told.text_offset
        assert told_in_pieces["tokens"] == told.tokens
        assert [*map(len, told_in_pieces["top_logprobs"])] == [*map(len, told.top_logprobs)]

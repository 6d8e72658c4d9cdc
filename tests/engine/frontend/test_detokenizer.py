"""Increments add up to the whole text, no half characters, stop strings exactly where str.find sees them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer

from minillm.frontend.detokenizer import Detokenizer, gpt2_letters

WORDS = [
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "日本語",
    "العربية",
    "e\u0301",
    "नमस्ते",
    "a",
    " b",
    "\n",
    "\ufffd",
    "stop",
    "𝒳",
    "é",
    "\u200d",
]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=5)), max_size=12).map("".join)


class Bytes:
    """A tokenizer whose token i is the i-th piece of a byte string, cut anywhere: the worst byte-level vocabulary."""

    def __init__(self, data: bytes, cuts: Sequence[int]) -> None:
        borders = [0, *sorted({cut % (len(data) + 1) for cut in cuts} - {0, len(data)}), len(data)]
        self.pieces = [data[a:b] for a, b in itertools.pairwise(borders) if a < b]
        self.ids = list(range(len(self.pieces)))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self.pieces[i] for i in token_ids if i < len(self.pieces)).decode(errors="replace")


def increments(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    """What each token releases, then what finish does."""
    return [*map(detokenizer.add, ids), detokenizer.finish()]


cuts = st.lists(st.integers(0, 400), max_size=60)


@given(data=texts.map(str.encode) | st.binary(max_size=60), cuts=cuts)
@settings(max_examples=500)
@example(data="😀".encode() * 30, cuts=list(range(2, 120, 4)))  # every token straddles two characters
@example(data=b"\xf0\x9f\x98" * 10, cuts=list(range(30)))
@example(data=b"\x80" * 30, cuts=list(range(30)))
def test_bytes_cut_anywhere_come_out_as_the_tokenizer_decodes_them(data, cuts):
    """Text comes back whole: no cut shows as U+FFFD."""
    tokenizer = Bytes(data, cuts)
    assert "".join(increments(Detokenizer(tokenizer, []), tokenizer.ids)) == data.decode(errors="replace")


@given(text=texts, cuts=cuts, stops=st.lists(st.text("ab\u0301é👩\u200dst", min_size=1, max_size=4), max_size=3))
@settings(max_examples=400)
@example(text="xstoppy", cuts=[2, 4, 6], stops=["stop"])
def test_stop_strings_are_found_where_find_finds_them(text, cuts, stops):
    tokenizer = Bytes(text.encode(), cuts)
    detokenizer = Detokenizer(tokenizer, [], tuple(stops))
    parts = increments(detokenizer, tokenizer.ids)
    complete = min(((text.find(s) + len(s), text.find(s), s) for s in stops if s in text), default=None)
    if complete is None:
        assert detokenizer.stopped_by is None
        assert "".join(parts) == text
        assert detokenizer.num_tokens == len(tokenizer.ids)
    else:
        end, start, stop = complete
        assert detokenizer.stopped_by == stop
        assert "".join(parts) == text[:start]
        # The token that completed it is the last one consumed, unless its text had to wait for later ones.
        consumed = b"".join(tokenizer.pieces[: detokenizer.num_tokens])
        assert len(text[:end].encode()) <= len(consumed)


@given(
    text=st.text("abc", max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 20),
)
@settings(max_examples=400)
@example(text="abxab", stops=["ab", "abcc"], min_tokens=2)  # the first "ab" is held: it may begin the other one
def test_a_stop_string_that_is_complete_within_min_tokens_does_not_count(text, stops, min_tokens):
    tokenizer = Bytes(text.encode(), range(len(text)))  # a token a character
    detokenizer = Detokenizer(tokenizer, [], tuple(stops), min_tokens)
    parts = increments(detokenizer, tokenizer.ids)
    ends = [(at + len(stop), at) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    late = [(end, at) for end, at in ends if end > min_tokens]
    assert "".join(parts) == (text[: min(late)[1]] if late else text)
    assert (detokenizer.stopped_by is not None) == bool(late)


def test_tokens_after_the_match_are_not_consumed():
    tokenizer = Bytes(b"one stop two", range(20))
    detokenizer = Detokenizer(tokenizer, [], ("stop",))
    assert "".join(map(detokenizer.add, tokenizer.ids)) == "one "
    assert detokenizer.num_tokens == len("one stop")
    assert detokenizer.add(9) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.num_tokens == len("one stop")


def test_a_stop_string_completed_only_by_finish():
    """The real character U+FFFD looks like a cut one, so it waits; as a stop string it still matches."""
    tokenizer = Bytes("ab\ufffd".encode(), [])
    detokenizer = Detokenizer(tokenizer, [], ("\ufffd",))
    assert "".join(map(detokenizer.add, tokenizer.ids)) == ""
    assert detokenizer.finish() == "ab"
    assert detokenizer.stopped_by == "\ufffd"


def test_bytes_that_cannot_complete_wait_a_bounded_time():
    tokenizer = Bytes(b"\x80" * 40, range(40))
    detokenizer = Detokenizer(tokenizer, [])
    num_released = 0
    for consumed, token_id in enumerate(tokenizer.ids, start=1):
        num_released += len(detokenizer.add(token_id))
        assert consumed - num_released <= 4


def test_the_window_stays_short():
    """Constant work per token: also in runs of tokens without text, invalid bytes, and straddling tokens."""

    class Counting(Bytes):
        longest = 0

        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            self.longest = max(self.longest, len(token_ids))
            return super().decode(token_ids)

    for data, cuts in (
        ("日本語 text ".encode() * 50, range(1000)),
        (b"\x80" * 200, range(200)),
        ("😀".encode() * 50, range(2, 200, 4)),
    ):
        tokenizer = Counting(data, cuts)
        no_text = len(tokenizer.ids)
        detokenizer = Detokenizer(tokenizer, [])
        increments(detokenizer, [*tokenizer.ids, *[no_text] * 100, *tokenizer.ids])
        assert tokenizer.longest <= 10


def test_without_a_tokenizer_the_text_stays_empty():
    detokenizer = Detokenizer(None, [1, 2], ("x",))
    assert increments(detokenizer, [3, 4, 5]) == [""] * 4
    assert (detokenizer.num_tokens, detokenizer.stopped_by) == (3, None)


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    """The decoder of Llama 2 and Mistral: "▁" is a space, bytes as <0x..>, the text's first space is dropped."""
    words = ["<s>", "▁I", "▁say", "▁hello", "▁", "!"] + [f"<0x{byte:02X}>" for byte in "é😀".encode()]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="!"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>")])
    return tokenizer


@pytest.mark.parametrize(
    "ids",
    [
        [3],
        [3, 3],
        [4, 3],
        [5, 4, 4, 3, 5],
        [0, 0, 0, 3],
        [3, 0, 0, 0, 3],
        [6, 7, 3],
        [5, 8, 9, 10, 11, 6, 7],  # byte fallback shows one U+FFFD per byte of an unfinished character
    ],
)
def test_sentencepiece_text_continues_the_prompt(sentencepiece_like, ids):
    prompt = [0, 1, 2]
    detokenizer = Detokenizer(sentencepiece_like, prompt)
    parts = increments(detokenizer, ids)
    assert "I say" + "".join(parts) == sentencepiece_like.decode(prompt + ids)


def test_a_prompt_cut_inside_a_character_is_no_context():
    tokenizer = Bytes("😀a".encode(), [1, 2, 3, 4])
    detokenizer = Detokenizer(tokenizer, tokenizer.ids[:2])
    assert "".join(increments(detokenizer, tokenizer.ids[2:])) == tokenizer.decode(tokenizer.ids[2:])


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """One token a byte, then added ones: with a space, from the middle of a character on, and a special one."""
    pieces = [letter for letter, _ in sorted(gpt2_letters().items(), key=lambda item: item[1])]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="!"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["two words", pieces[0x98] + pieces[0x80] + "a"])
    tokenizer.add_special_tokens([AddedToken("<s>")])
    return tokenizer


@given(ids=st.lists(st.one_of(st.sampled_from([*"😀é".encode(), 0x80, 256, 257, 258, 999]), st.integers(0, 255))))
@settings(max_examples=400)
@example(ids=[*"😀".encode()[:2], 257, 256, 0xF0, 0x9F, 258, 0x98, 0x80, 0xE2])
def test_any_bytes_come_out_as_a_byte_level_tokenizer_decodes_them(byte_level, ids):
    detokenizer = Detokenizer(byte_level, [])
    assert "".join(increments(detokenizer, ids)) == byte_level.decode(ids)


@pytest.fixture(scope="module")
def smollm_tokenizer(smollm_path: Path):
    return AutoTokenizer.from_pretrained(smollm_path)


@given(ids=st.lists(st.integers(0, 49151), max_size=40), prompt=texts)
@settings(max_examples=150)
def test_smollm_tokens_come_out_as_decoded(smollm_tokenizer, ids, prompt):
    detokenizer = Detokenizer(smollm_tokenizer, smollm_tokenizer.encode(prompt))
    parts = increments(detokenizer, ids)
    assert "".join(parts) == smollm_tokenizer.decode(ids, skip_special_tokens=True)

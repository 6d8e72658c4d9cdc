"""The model's own tokenizer in plain Python: `tokenizers`, the library, has no build for a browser.

It reads tokenizer.json of a byte-level BPE (GPT-2's kind) and says what the library says of any text; a test compares
the two. A text is cut at special tokens, then into words, and each word's bytes are merged pair by pair.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from minillm.frontend.detokenizer import gpt2_letters

SPACES = "\t\n\v\f\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
WORD = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
"""As GPT-2 cuts a text into words, of a text that `in_ascii` has rewritten."""
SPACE = re.compile(f"[{SPACES}]")
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model's chat template begins a conversation with that brings no system message."""


def in_ascii(text: str) -> str:
    """The text with each other character replaced by an ASCII one of its kind: a letter, a digit, a space or none of
    those. Python's own `re` knows no \\p{L}."""
    return text if text.isascii() else "".join(map(_ascii_of, text))


@functools.cache
def _ascii_of(character: str) -> str:
    if character.isascii():
        return character
    if SPACE.match(character):
        return "\n"
    return {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "!")


class BytePairTokenizer:
    """What an engine wants of a tokenizer.

    Args:
        text: of tokenizer.json.
    """

    def __init__(self, text: str) -> None:
        told = json.loads(text)
        model, added = told["model"], told["added_tokens"]
        self._ids: dict[str, int] = model["vocab"]
        self._special = {each["content"]: each["id"] for each in added if each["special"]}
        pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        self._letter_of = {byte: letter for letter, byte in gpt2_letters().items()}
        self._pieces = {token: piece for piece, token in self._ids.items()}
        self._cut = re.compile("|".join(map(re.escape, self._special)))

    def __len__(self) -> int:
        return len(self._ids)

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids; names of special tokens become those. It adds none of its own."""
        text.encode()  # UnicodeError: half a surrogate pair
        found, end = [], 0
        for special in self._cut.finditer(text):
            found += [*self._plain(text[end : special.start()]), self._special[special[0]]]
            end = special.end()
        return [*found, *self._plain(text[end:])]

    def _plain(self, text: str) -> Iterator[int]:
        for word in WORD.finditer(in_ascii(text)):
            yield from self._merged(text[word.start() : word.end()])

    @functools.lru_cache(4096)  # noqa: B019  one tokenizer lives as long as the page
    def _merged(self, word: str) -> list[int]:
        """The pair of neighbours that was learned first becomes one piece, until none is known."""
        letters = (self._letter_of[byte] for byte in word.encode())
        pieces = [letter for letter in letters if letter in self._ids]  # some bytes were in no text it was learned from
        while len(pieces) > 1:
            pair = min(pairwise(pieces), key=lambda each: self._ranks.get(each, len(self._ranks)))
            if pair not in self._ranks:
                break
            merged: list[str] = []
            for piece in pieces:
                if merged and (merged[-1], piece) == pair:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            pieces = merged
        return [self._ids[piece] for piece in pieces]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        letters = gpt2_letters()
        pieces = (self._pieces[token] for token in token_ids if token in self._pieces)
        shown = (piece for piece in pieces if not (skip_special_tokens and piece in self._special))
        return b"".join(
            piece.encode() if piece in self._special else bytes(letters[each] for each in piece) for piece in shown
        ).decode(errors="replace")

    def convert_tokens_to_ids(self, names: Sequence[str]) -> list[int]:
        """Ids of special tokens."""
        return [self._special[name] for name in names]

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        """The conversation as the model has learned to read it (ChatML), up to where its answer begins."""
        system = [] if messages[0]["role"] == "system" else [{"role": "system", "content": SYSTEM}]
        said = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in (*system, *messages))
        return f"{said}<|im_start|>assistant\n"

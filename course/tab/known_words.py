"""A tokenizer of the words that the lab's traffic is made of: a browser has no other.

`python -m course.tab.known_words` writes down how the default model's tokenizer cuts each of them. That tokenizer cuts
a text into words first, and no token reaches over two of them: so any text of known words becomes the very same tokens.
Another word counts a token for every four of its bytes.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
DIGIT = re.compile(r"(\d)")
WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
"""As GPT-2 cuts a text, digits aside, which stand alone here."""
BYTES_PER_TOKEN = 4
SEEDS = range(20)
"""Traffic of these is written down; words come again and again, so others have few new ones, or none."""


def words_of(text: str) -> Iterator[str]:
    """Its words, each with the space before it."""
    for part in DIGIT.split(text):
        yield from [part] if DIGIT.fullmatch(part) else WORD.findall(part)


class WordTokenizer:
    """What an engine on a simulated device wants of a tokenizer.

    Args:
        known: the token ids of each word.
        size: of the vocabulary that the ids are from.
        special: ids of special tokens by name.
    """

    def __init__(self, known: dict[str, list[int]], size: int, special: dict[str, int]) -> None:
        self._known, self._size, self._special = known, size, special
        self._texts = {ids[0]: word for word, ids in known.items() if len(ids) == 1}

    @classmethod
    @functools.cache
    def recorded(cls) -> "WordTokenizer":
        """From the file."""
        return cls(**json.loads(FILE.read_text(encoding="utf-8")))

    def __len__(self) -> int:
        return self._size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids, as `transformers` has them: without any special ones here."""
        return [token for word in words_of(text) for token in self._known.get(word) or self._made_up(word)]

    def _made_up(self, word: str) -> Iterable[int]:
        """For a word that isn't known."""
        given = word.encode()
        pieces = (given[i : i + BYTES_PER_TOKEN] for i in range(0, len(given), BYTES_PER_TOKEN))
        return [int.from_bytes(piece, "big") % self._size for piece in pieces]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Their words; nothing for a part of a word."""
        return "".join(self._texts.get(token, "") for token in token_ids)

    def convert_tokens_to_ids(self, names: Sequence[str]) -> list[int]:
        """Ids of special tokens."""
        return [self._special[name] for name in names]


def record(tokenizer: Any) -> dict[str, Any]:
    """How a tokenizer of `transformers` cuts every word of the lab's traffic, and of placeholder answers."""
    from course.lab.simulated_device import ENDS, REMINDER, WORDS
    from course.lab.workloads import MAKERS, workload

    prompts = [arrival.prompt for name in MAKERS for seed in SEEDS for arrival in workload(name, seed).arrivals]
    texts = [*map(str, prompts), *(f" {word}" for word in WORDS.split()), REMINDER]
    known = {word: tokenizer.encode(word, add_special_tokens=False) for text in texts for word in words_of(text)}
    special = dict(zip(ENDS, tokenizer.convert_tokens_to_ids(list(ENDS))))
    return {"known": dict(sorted(known.items())), "size": len(tokenizer), "special": special}


def main() -> None:
    from course.lab.simulated_device import placeholder_tokenizer

    found = record(placeholder_tokenizer())
    FILE.write_text(json.dumps(found, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(found['known'])} words in {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

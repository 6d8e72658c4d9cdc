"""The words that answers use, sorted into concepts: words.toml as regular expressions over lower-case text.

One place for synonyms; rules speak of concepts only. Where two concepts overlap in a text, HIDES says which one keeps
the words: `int8 KV` is a smaller cache, not quantized weights.
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

_GROUPS: Mapping[str, Mapping[str, str | list[str]]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
_SYMBOLS = "|→|->|=>|=|≈"
"""What stands for "because" and is no word."""

_TOPIC_GROUPS = ("phases", "metrics", "causes", "techniques", "operations")
TECHNIQUES = frozenset(_GROUPS["techniques"])
TOPICS = frozenset(name for group in _TOPIC_GROUPS for name in _GROUPS[group])
"""What an answer can be about; the rest is how it argues."""
CONCEPTS = TOPICS | frozenset(_GROUPS["moves"])
HIDES = _GROUPS["hides"]
"""A mention of the first is not a mention of the others."""


@functools.cache
def concepts() -> dict[str, re.Pattern[str]]:
    """By name, what a mention of each concept looks like; compiled when the first answer is read."""
    return {
        name: re.compile(rf"(?<!\w)(?:{_joined(words)})(?!\w){_SYMBOLS if name == 'because' else ''}")
        for group in (*_TOPIC_GROUPS, "moves")
        for name, words in _GROUPS[group].items()
    }


@functools.cache
def grammar(name: str) -> re.Pattern[str]:
    """Words by which an answer claims, asks or denies."""
    return re.compile(rf"\b(?:{_joined(_GROUPS['grammar'][name])})\b")


def _joined(words: str | list[str]) -> str:
    return words if isinstance(words, str) else "|".join(words)

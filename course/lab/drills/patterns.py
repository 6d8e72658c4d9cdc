"""A small language for rules: which concepts have to meet, within a sentence or two.

    "queue|prefill + ttft + because|number"   one sentence with one of each
    "~ prefill + derived"                     the same within two neighbouring sentences

An atom is a concept of words.toml, mentioned and not denied; `!queue` is a denied mention, `?queue` either. Then there
are `number` (any), `given` (one of the prompt's), `derived` (one that follows from them, and is right; `derived.decode`
is that one), `tempting` (one that a popular wrong formula gives), `question`, and `listed`. Only sentences that claim
something count: a list of keywords matches nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from course.lab.drills.reading import Reading, Sentence
from course.lab.drills.words import CONCEPTS

KINDS = frozenset({"number", "given", "derived", "tempting", "question", "listed"})
"""Atoms that are no concepts."""


@dataclass(frozen=True)
class Pattern:
    """One rule. Raises ValueError for an atom that there is not."""

    rule: str

    def __post_init__(self) -> None:
        for atom in (atom for group in self.groups for atom in group):
            name = atom.lstrip("!?")
            if name not in CONCEPTS and name.partition(".")[0] not in KINDS:
                raise ValueError(f"{self.rule!r}: no concept {name!r}")

    @cached_property
    def reach(self) -> int:
        """Sentences that it looks at together."""
        return 2 if self.rule.startswith("~") else 1

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(a.strip() for a in g.split("|")) for g in self.rule.lstrip("~").split("+"))

    def matches(self, window: Sequence[Sentence]) -> bool:
        return all(any(_has(each, atom) for each in window for atom in group) for group in self.groups)

    def places(self, reading: Reading) -> Iterator[tuple[Sentence, ...]]:
        """Every window of claims in which it holds, in order."""
        claims = reading.claims
        for first in range(len(claims)):
            for reach in range(1, self.reach + 1):
                window = tuple(claims[first : first + reach])
                if len(window) == reach and self.matches(window):
                    yield window
                    break


def find(rules: str | Iterable[str], reading: Reading) -> list[str]:
    """Quotes from the answer that satisfy one of the rules, those of the first rule first; none = none does."""
    rules = (rules,) if isinstance(rules, str) else rules
    quotes = [" ".join(s.words for s in window) for rule in rules for window in Pattern(rule).places(reading)]
    return list(dict.fromkeys(quotes))


def _has(sentence: Sentence, atom: str) -> bool:
    name = atom.lstrip("!?")
    kind, _, which = name.partition(".")
    if kind == "number":
        return bool(sentence.amounts)
    if kind in ("given", "derived", "tempting"):
        found = getattr(sentence, kind)
        return which in found if which else bool(found)
    if kind == "question":
        return sentence.is_question
    if kind == "listed":
        return sentence.listed
    if atom[0] == "!":
        return name in sentence.denied
    return name in sentence.concepts or (atom[0] == "?" and name in sentence.denied)

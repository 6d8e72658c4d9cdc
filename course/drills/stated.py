"""Statements such as "quantization cuts queue wait", read from prose by the patterns of stated.toml.

Only plain statements are read: a technique, a verb and a quantity in one clause, or a cause that is declared innocent.
Questions, conditions and hedges are left to people. What is done with them is in falsehoods.py.
"""

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 20_000
"""Characters that are read; no answer in a drill is longer."""
LONGEST_CLAUSE = 400
LEAD_IN = 3
"""Words of a clause that is too short to change the subject."""
NEGATION = 9
"""Characters before what is denied, at most: "no one's "."""
_GOOD_HIGH = ("throughput", "hit_rate")


@dataclass(frozen=True)
class Statement:
    """A technique, what it is said to do, and to which quantity."""

    technique: str
    says: str
    """lowers, raises, moves or nothing."""
    denied: bool
    quantity: str
    quote: str
    """The sentence it stands in."""

    @property
    def meaning(self) -> tuple[str, str, bool, str]:
        return (self.technique, self.says, self.denied, self.quantity)

    def agrees_with(self, effect: str) -> bool:
        """Whether an effect of the table bears it out; of several ("nothing|raises"), either can be."""
        can, says = set(effect.split("|")), {"lowers", "raises"} if self.says == "moves" else {self.says}
        return not can <= says if self.denied else bool(can & says)


class Mention(NamedTuple):
    """A technique or a quantity, and where a clause names it."""

    name: str
    start: int
    end: int


@functools.cache
def table() -> dict[str, Any]:
    """stated.toml, its patterns compiled."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for group in ("causes", "techniques", "quantities"):
        read[group] = {name: (label, re.compile(rf"\b(?:{words})\b")) for name, (label, words) in read[group].items()}
    read["grammar"] = {name: re.compile(words) for name, words in read["grammar"].items()}
    read["verbs"] = re.compile("|".join(rf"\b(?P<{kind}>{words})\b" for kind, words in read["verbs"].items()))
    read["myths"] = [(re.compile(m["says"]), re.compile(m["unless"]), m["right"]) for m in read["myths"]]
    return read


def grammar(name: str) -> re.Pattern[str]:
    """One of the patterns of English that stated.toml has."""
    pattern: re.Pattern[str] = table()["grammar"][name]
    return pattern


def menu(group: str) -> dict[str, str]:
    """What can be committed to, by id: `causes` or `techniques`."""
    return {name: label for name, (label, _) in table()[group].items()}


def sentences(text: str) -> list[str]:
    """The sentences of a text, each on one line."""
    return [" ".join(part.split()) for part in grammar("sentence_end").split(text[:LONGEST]) if part.strip()]


def named_in(text: str) -> set[str]:
    """Techniques, quantities and causes that a text names, whatever it says of them."""
    low = lowered(text[:LONGEST])
    groups = ("causes", "techniques", "quantities")
    return {name for group in groups for name, (_, words) in table()[group].items() if words.search(low)}


def declared_innocent(text: str) -> dict[str, str]:
    """Causes of which a text says that they aren't the trouble, with the sentence."""
    found = {}
    for sentence, low in asserted(text):
        for clause in _clauses(low):
            for name, (_, words) in table()["causes"].items():
                if any(around("innocent", clause, *m.span()) for m in words.finditer(clause)):
                    found.setdefault(name, sentence)
    return found


def asserted(text: str) -> Iterator[tuple[str, str]]:
    """Sentences, and what they assert, in lower case: nothing if it hangs on a condition, or is others' opinion."""
    said = sentences(text)
    for sentence, following in zip(said, [*said[1:], ""]):
        low = unquoted(sentence)
        is_open = grammar("left_to_people").search(low) or grammar("taken_back").match(lowered(following))
        yield sentence, "" if is_open else low


def statements_in(text: str) -> list[Statement]:
    """Everything that a text plainly says of a technique; "which" and "it" stand for what went before."""
    found: list[Statement] = []
    before: str | None = None
    for sentence, low in asserted(text):
        after_with, before = False, before if low else None
        for words in _clauses(grammar("aside").sub(" ", low)):
            named = [place for place in _places("techniques", words) if not _is_taken_away(place, words)]
            clause = _Clause(words, sentence, named, before, after_with)
            found += clause.statements()
            after_with = grammar("with").match(words) is not None
            if named or not (grammar("pronoun").match(words) or len(words.split()) < LEAD_IN):
                before = named[-1].name if named else None
    return found


def around(name: str, clause: str, start: int, end: int) -> bool:
    """Whether a pattern fits what stands before and behind a place of a clause, with a bar for what is there."""
    return grammar(name).search(f"{clause[:start]}|{clause[end:]}") is not None


def lowered(text: str) -> str:
    """The text without capitals and marks of emphasis, as the patterns expect it."""
    return text.lower().replace("’", "'").replace("*", "").replace("`", "")


def unquoted(sentence: str) -> str:
    """What a sentence says in its author's own words, in lower case."""
    return grammar("quoted").sub(" ", lowered(sentence))


@dataclass(frozen=True)
class _Clause:
    """One clause of a sentence, read verb by verb."""

    words: str
    sentence: str
    techniques: list[Mention]
    """Those that it names, in order."""
    before: str | None
    """The technique that the clauses before were about: "it" and "which" stand for it."""
    after_with: bool
    """The clause before was "with ...", and names what this one's verbs are about."""

    def statements(self) -> Iterator[Statement]:
        """What each verb says of a technique and a quantity, where both are there."""
        verbs = list(table()["verbs"].finditer(self.words))
        ends = [*(following.start() for following in verbs[1:]), len(self.words)]
        for verb, end in zip(verbs, ends):
            if about := self._subject_and_objects(verb, end):
                yield from self._said_by(verb, *about)

    def _said_by(self, verb: re.Match[str], subject: Mention, objects: list[Mention]) -> Iterator[Statement]:
        begin = min(subject.start, objects[0].start, verb.start())
        for quantity in objects:
            end = max(verb.end(), quantity.end, subject.start)
            if effect := self._effect(verb, end, quantity.name):
                is_denied = effect == "nothing" or self._is_denied(begin, end)
                says = "moves" if effect == "nothing" else effect
                yield Statement(subject.name, says, is_denied, quantity.name, self.sentence)

    def _subject_and_objects(self, verb: re.Match[str], end: int) -> tuple[Mention, list[Mention]] | None:
        """The technique that a verb is about and what it does something to; None if one of them is missing.

        Args:
            end: where the next verb begins.
        """
        objects = self._objects(verb, end)
        subject = self._subject(verb)
        later = self._technique_after(verb)
        if objects and later and around("aim", self.words, verb.start(), objects[-1].end):
            return later, objects  # to cut the queue we quantize; the cure for the queue is quantization
        if objects and subject:
            return subject, objects
        earlier = [quantity for quantity in self._quantities if quantity.end <= verb.start()][-1:]
        if earlier and later and grammar("by").search(self.words, verb.end(), later.start):
            return later, earlier  # the queue is cut by quantization
        if earlier and subject and (self.after_with or around("with", self.words, earlier[0].start, verb.end())):
            return subject, earlier  # with quantization the queue shrinks; we quantize and the queue shrinks
        return None

    def _subject(self, verb: re.Match[str]) -> Mention | None:
        """The nearest technique before a verb, else the one that the clause goes on about."""
        earlier = [technique for technique in self.techniques if technique.end <= verb.start()]
        if earlier:
            return earlier[-1]
        goes_on = self.after_with or (not self._technique_after(verb) and self._begins_with(verb))
        return Mention(self.before, 0, 0) if self.before and goes_on else None

    def _technique_after(self, verb: re.Match[str]) -> Mention | None:
        return next((technique for technique in self.techniques if technique.start >= verb.end()), None)

    def _begins_with(self, verb: re.Match[str]) -> bool:
        """The clause has no subject of its own."""
        start = grammar("no_subject").match(self.words)
        return start is not None and start.end() == verb.start()

    @functools.cached_property
    def _quantities(self) -> list[Mention]:
        """Quantities that it names, but for those that are part of a technique's name."""
        named = _places("quantities", self.words)
        return [each for each in named if not any(each.start < t.end and t.start < each.end for t in self.techniques)]

    def _objects(self, verb: re.Match[str], end: int) -> list[Mention]:
        """The first quantity behind a verb and those that "and" adds: not one that begins a statement of its own."""
        behind = [quantity for quantity in self._quantities if verb.end() <= quantity.start < end]
        kept = behind[:1]
        for quantity in behind[1:]:
            is_added = grammar("also").fullmatch(self.words[kept[-1].end : quantity.start])
            if not is_added or grammar("begins_anew").match(self.words, quantity.end):
                break
            kept.append(quantity)
        return kept

    def _effect(self, verb: re.Match[str], end: int, quantity: str) -> str:
        """lowers, raises, moves or nothing, as a verb says it of a quantity; empty if it says none of these."""
        kind = str(verb.lastgroup)
        if kind == "makes":
            behind = self.words[verb.end() : end + 40]
            kinds = ("lowers", "raises", "helps", "hurts")
            kind = next((each for each in kinds if grammar(f"what_{each}").search(behind)), "")
        better, worse = ("raises", "lowers") if quantity in _GOOD_HIGH else ("lowers", "raises")
        return {"helps": better, "hurts": worse}.get(kind, kind)

    def _is_denied(self, begin: int, end: int) -> bool:
        return grammar("denies").search(self.words, max(begin - NEGATION, 0), end) is not None


def _clauses(sentence: str) -> Iterator[str]:
    return (clause[:LONGEST_CLAUSE] for clause in grammar("clause_end").split(sentence) if len(clause) > 3)


def _is_taken_away(technique: Mention, clause: str) -> bool:
    """What is said is said of doing without it."""
    return around("taken_away", clause, technique.start, technique.end)


def _places(group: str, clause: str) -> list[Mention]:
    """Where a clause names one of a group, in order; of two that overlap, the longer."""
    found = [Mention(name, *m.span()) for name, (_, words) in table()[group].items() for m in words.finditer(clause)]
    found.sort(key=lambda place: (place.start, place.start - place.end))
    kept: list[Mention] = []
    for place in found:
        if not kept or place.start >= kept[-1].end:
            kept.append(place)
    return kept

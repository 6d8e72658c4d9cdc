"""Statements such as "quantization cuts queue wait", held against a table of what techniques do (claims.toml).

Only plain statements are read: a technique, a verb and a quantity in one clause, or a cause that is declared innocent.
Questions, conditions, hedges, and whatever has no line in the table are left to people.
"""

import functools
import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 20_000
"""Characters that are read; no answer in a drill is longer."""
LONGEST_CLAUSE = 400
LEAD_IN = 3
"""Words of a clause that is too short to change the subject."""
NEGATION = 9
"""Characters before what is denied, at most: "no one's "."""
_GOOD_HIGH = ("throughput", "hit_rate")
_Pairs = Sequence[tuple[str, str]]


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
        """With one that a line of the table has; of several, either can be."""
        can, says = set(effect.split("|")), {"lowers", "raises"} if self.says == "moves" else {self.says}
        return not can <= says if self.denied else bool(can & says)


@dataclass(frozen=True)
class Claim:
    """One statement that the table or a drill's falsehoods contradict."""

    quote: str
    right: str
    """How it is."""


@functools.cache
def table() -> dict[str, Any]:
    """claims.toml, its patterns compiled."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for group in ("causes", "techniques", "quantities"):
        read[group] = {name: (label, re.compile(rf"\b(?:{words})\b")) for name, (label, words) in read[group].items()}
    read["grammar"] = {name: re.compile(words) for name, words in read["grammar"].items()}
    read["verbs"] = re.compile("|".join(rf"\b(?P<{kind}>{words})\b" for kind, words in read["verbs"].items()))
    read["myths"] = [(re.compile(m["says"]), re.compile(m["unless"]), m["right"]) for m in read["myths"]]
    return read


def _grammar(name: str) -> re.Pattern[str]:
    pattern: re.Pattern[str] = table()["grammar"][name]
    return pattern


def menu(group: str) -> dict[str, str]:
    """What can be committed to, by id: `causes` or `techniques`."""
    return {name: label for name, (label, _) in table()[group].items()}


def sentences(text: str) -> list[str]:
    return [" ".join(part.split()) for part in _grammar("sentence_end").split(text[:LONGEST]) if part.strip()]


def named_in(text: str) -> set[str]:
    """Techniques, quantities and causes that a text names, whatever it says of them."""
    low = _lowered(text[:LONGEST])
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


def false_claims(text: str, falsehoods: _Pairs = (), facts: str = "", likes: _Pairs = ()) -> list[Claim]:
    """What is false in a text by the table or by one of the (falsehood, right statement), each once.

    Args:
        facts: what holds, whatever the table says.
        likes: (pattern of a falsehood, right statement).
    """
    false = {each.meaning: right for says, right in falsehoods for each in statements_in(says)}
    true = {each.meaning for each in statements_in(facts)}
    found = [*_alike(text, likes), *(claim for each in asserted(text) for claim in _myths(*each))]
    for said in statements_in(text):
        effect, unless, right = table()["effects"].get(f"{said.technique}.{said.quantity}", (None, "", ""))
        low = _lowered(said.quote)
        is_of_one_case = said.denied and _grammar("of_one_case").search(low)
        at_all = (said.technique, "moves", True, said.quantity)  # what does nothing does not lower either
        is_true = said.meaning in true or (said.denied and at_all in true)
        if (unless and re.search(unless, low)) or is_of_one_case or is_true:
            continue
        if said.meaning in false:
            found.append(Claim(said.quote, false[said.meaning]))
        elif effect and not said.agrees_with(effect):
            found.append(Claim(said.quote, right))
    return list(dict.fromkeys(found))


def against_itself(text: str) -> list[tuple[str, str]]:
    """Pairs of sentences of which one denies what the other says."""
    said = {each.meaning: each.quote for each in statements_in(text)}
    return [
        (quote, said[other])
        for (technique, says, denied, quantity), quote in said.items()
        if not denied and (other := (technique, says, True, quantity)) in said
    ]


def statements_in(text: str) -> list[Statement]:
    """Everything that a text plainly says of a technique; "which" and "it" stand for what went before."""
    found: list[Statement] = []
    before: str | None = None
    for sentence, low in asserted(text):
        with_before, before = False, before if low else None
        for clause in _clauses(_grammar("aside").sub(" ", low)):
            named = [t for t in _places("techniques", clause) if not around("taken_away", clause, *t[1:])]
            found += [Statement(*each, sentence) for each in _stated(clause, named, before, with_before)]
            with_before = _grammar("with").match(clause) is not None
            if named or not (_grammar("pronoun").match(clause) or len(clause.split()) < LEAD_IN):
                before = named[-1][0] if named else None
    return found


def asserted(text: str) -> Iterator[tuple[str, str]]:
    """Sentences, and what they assert, in lower case: nothing if it hangs on a condition, or is others' opinion."""
    said = sentences(text)
    for sentence, following in zip(said, [*said[1:], ""]):
        low = _grammar("quoted").sub(" ", _lowered(sentence))
        is_open = _grammar("left_to_people").search(low) or _grammar("taken_back").match(_lowered(following))
        yield sentence, "" if is_open else low


def around(name: str, clause: str, start: int, end: int) -> bool:
    """What stands before and behind a place of a clause, with a bar for what is there."""
    return _grammar(name).search(f"{clause[:start]}|{clause[end:]}") is not None


def _lowered(text: str) -> str:
    return text.lower().replace("’", "'").replace("*", "").replace("`", "")


def _clauses(sentence: str) -> Iterator[str]:
    return (clause[:LONGEST_CLAUSE] for clause in _grammar("clause_end").split(sentence) if len(clause) > 3)


def _myths(sentence: str, low: str) -> Iterator[Claim]:
    for says, unless, right in table()["myths"]:
        if says.search(low) and not unless.search(low) and not _grammar("denies").search(low):
            yield Claim(sentence, right)


def _alike(text: str, likes: _Pairs) -> Iterator[Claim]:
    """A drill's own falsehoods. "Only" takes nothing back of these, where no condition follows."""
    gated = asserted(_grammar("only").sub("", text))
    for sentence, (_, is_asserted) in zip(sentences(text), gated):
        low = _grammar("quoted").sub(" ", _lowered(sentence))
        parts = re.split("[:;–—]", low) if is_asserted and not _grammar("turned").search(low) else []
        for part, (like, right) in itertools.product(parts, likes):
            said = re.search(like, part)
            if said and not _grammar("denies").search(part.replace(said.groupdict().get("no") or "\0", " ")):
                yield Claim(sentence, right)


_Place = tuple[str, int, int]


def _stated(
    clause: str, named: list[_Place], before: str | None, with_before: bool
) -> Iterator[tuple[str, str, bool, str]]:
    """(technique, says, denied, quantity) of one clause."""
    verbs = list(table()["verbs"].finditer(clause))
    quantities = [q for q in _places("quantities", clause) if not any(q[1] < t[2] and t[1] < q[2] for t in named)]
    for verb, following in zip(verbs, [*verbs[1:], None]):
        stop = following.start() if following else len(clause)
        objects = _joined(clause, [q for q in quantities if verb.end() <= q[1] < stop])
        earlier = [q for q in quantities if q[2] <= verb.start()]
        subject = next((t for t in reversed(named) if t[2] <= verb.start()), None)
        later = next((t for t in named if t[1] >= verb.end()), None)
        if not subject and before and (with_before or (not later and _begins(clause, verb))):
            subject = (before, 0, 0)
        if objects and later and around("aim", clause, verb.start(), objects[-1][2]):
            subject = later  # to cut the queue we quantize; the cure for the queue is quantization
        elif not (objects and subject):
            if earlier and later and _grammar("by").search(clause, verb.end(), later[1]):
                subject, objects = later, earlier[-1:]  # the queue is cut by quantization
            elif earlier and subject and (with_before or around("with", clause, earlier[-1][1], verb.end())):
                objects = earlier[-1:]  # with quantization the queue shrinks; we quantize and the queue shrinks
            else:
                continue
        begin = min(subject[1], objects[0][1], verb.start())
        for quantity in objects:
            says, denied = _says(verb, clause, begin, max(verb.end(), quantity[2], subject[1]), quantity[0])
            if says:
                yield subject[0], says, denied, quantity[0]


def _begins(clause: str, verb: re.Match[str]) -> bool:
    """The clause has no subject of its own."""
    start = _grammar("no_subject").match(clause)
    return start is not None and start.end() == verb.start()


def _joined(clause: str, objects: list[_Place]) -> list[_Place]:
    """The first object of a verb and those that "and" adds: not one that begins a statement of its own."""
    kept = objects[:1]
    for each in objects[1:]:
        is_added = _grammar("also").fullmatch(clause[kept[-1][2] : each[1]])
        if not is_added or _grammar("begins_anew").match(clause, each[2]):
            break
        kept.append(each)
    return kept


def _says(verb: re.Match[str], clause: str, begin: int, end: int, quantity: str) -> tuple[str, bool]:
    """What is said to be done, and whether it is denied."""
    denied = _grammar("denies").search(clause, max(begin - NEGATION, 0), end) is not None
    low, high = ("raises", "lowers") if quantity in _GOOD_HIGH else ("lowers", "raises")
    kind = str(verb.lastgroup)
    if kind == "nothing":
        return "moves", True
    if kind == "makes":
        around = clause[verb.end() : end + 40]
        kind = next((k for k in ("lowers", "raises", "helps", "hurts") if _grammar(f"what_{k}").search(around)), "")
    return {"helps": low, "hurts": high}.get(kind, kind), denied


def _places(group: str, clause: str) -> list[_Place]:
    """Names of a group with where they stand, in order; of two that overlap, the longer."""
    found = [(name, *m.span()) for name, (_, words) in table()[group].items() for m in words.finditer(clause)]
    found.sort(key=lambda each: (each[1], each[1] - each[2]))
    kept: list[_Place] = []
    for each in found:
        if not kept or each[1] >= kept[-1][2]:
            kept.append(each)
    return kept

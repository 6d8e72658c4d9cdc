"""What is false in a text: statements that the table (stated.toml) or a drill's own falsehoods contradict."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.drills.stated import Statement, asserted, grammar, lowered, sentences, statements_in, table, unquoted

_Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FalseStatement:
    """One sentence that is false, and what is right."""

    quote: str
    right: str


def falsehoods_in(text: str, falsehoods: _Pairs = (), facts: str = "", likes: _Pairs = ()) -> list[FalseStatement]:
    """What is false in a text by the table or by one of the (falsehood, right statement), each once.

    Args:
        facts: what holds, whatever the table says.
        likes: (pattern of a falsehood, right statement).
    """
    false = {each.meaning: right for says, right in falsehoods for each in statements_in(says)}
    true = {each.meaning for each in statements_in(facts)}
    found = [*_alike(text, likes), *_myths_in(text)]
    for said in statements_in(text):
        effect, unless, right = table()["effects"].get(f"{said.technique}.{said.quantity}", (None, "", ""))
        if _is_excused(said, unless) or _is_implied(said, true):
            continue
        if said.meaning in false:
            found.append(FalseStatement(said.quote, false[said.meaning]))
        elif effect and not said.agrees_with(effect):
            found.append(FalseStatement(said.quote, right))
    return list(dict.fromkeys(found))


def against_itself(text: str) -> list[tuple[str, str]]:
    """Pairs of sentences of which one denies what the other says."""
    said = {each.meaning: each.quote for each in statements_in(text)}
    return [
        (quote, said[other])
        for (technique, says, denied, quantity), quote in said.items()
        if not denied and (other := (technique, says, True, quantity)) in said
    ]


def _is_excused(said: Statement, unless: str) -> bool:
    """Its sentence has a word that can make it right, or denies it of one case only."""
    low = lowered(said.quote)
    return bool((unless and re.search(unless, low)) or (said.denied and grammar("of_one_case").search(low)))


def _is_implied(said: Statement, true: set[tuple[str, str, bool, str]]) -> bool:
    """It is among what is true; what does nothing to a quantity does not lower it either."""
    moves_nothing = (said.technique, "moves", True, said.quantity)
    return said.meaning in true or (said.denied and moves_nothing in true)


def _myths_in(text: str) -> Iterator[FalseStatement]:
    """What is wrong in whatever words, where nothing in the sentence denies it."""
    for (sentence, low), (says, unless, right) in itertools.product(asserted(text), table()["myths"]):
        if says.search(low) and not unless.search(low) and not grammar("denies").search(low):
            yield FalseStatement(sentence, right)


def _alike(text: str, likes: _Pairs) -> Iterator[FalseStatement]:
    """A drill's own falsehoods. "Only" takes nothing back of these, where no condition follows."""
    gated = asserted(grammar("only").sub("", text))
    for sentence, (_, is_asserted) in zip(sentences(text), gated):
        low = unquoted(sentence)
        parts = re.split("[:;–—]", low) if is_asserted and not grammar("turned").search(low) else []
        for part, (like, right) in itertools.product(parts, likes):
            said = re.search(like, part)
            if said and not grammar("denies").search(part.replace(said.groupdict().get("no") or "\0", " ")):
                yield FalseStatement(sentence, right)

"""What the interviewer has to say in a drill's conversation: statements to judge, and facts to ask for.

NAME.toml   one per drill: at least 20 `[[statements]]`, 10 to 15 `[[facts]]`, and names of its own in `[derived]`

Whether a statement is true is computed for each draw: `true_if` is an expression over the drill's numbers, as those of
`[derived]` are (../library/formulas.py). `[derived]` here adds to them: a unit and a formula for what texts show, a
formula alone, which may be a `lambda`, for what expressions use.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from course.drills.amounts import Amount
from course.drills.drill import DrawnDrill, FromFile, filled
from course.drills.library.formulas import FormulaError, derived, evaluate
from course.drills.stated import menu
from minillm.core.errors import MinillmError

HERE = Path(__file__).parent
ARITHMETIC = "arithmetic"
"""What a statement is about that names no cause and no technique."""
PUT = 8
"""Statements that are put on the table."""
TRUE_OF_THEM = (3, 4, 5)
"""How many of those are true: a seed draws it, so that counting tells nothing."""
LEAST_STATEMENTS, LEAST_OF_EACH = 20, 4
OFF_BY = 0.03
"""What a figure on a napkin may be off by. A statement that turns with that isn't put on the table."""
FACTS = range(10, 16)


class TalkError(MinillmError):
    """A file of statements and facts has a mistake; the words say in which file, and where."""


def _known(name: str) -> bool:
    return name in menu("causes") or name in menu("techniques")


class Statement(FromFile):
    """A sentence about this very case, and what decides whether it is true."""

    says: str = Field(min_length=10)
    because: str = Field(min_length=10)
    """Shown afterwards, whatever was answered."""
    about: str
    """A cause or technique of stated.toml, or "arithmetic"."""
    true_if: str = ""
    """An expression over the drill's numbers."""
    is_exact: bool = False
    """Whether its numbers cancel: they can't be off one by one."""
    holds: bool | None = None
    """Where nothing can be computed."""
    source: str = ""
    """Where `holds` is written: a paper, a page of documentation, a lesson."""

    @model_validator(mode="after")
    def _is_decided(self) -> "Statement":
        if bool(self.true_if) == (self.holds is not None):
            raise ValueError("give exactly one of true_if and holds")
        if self.holds is not None and not self.source:
            raise ValueError("holds needs a source: where it is written")
        if self.about != ARITHMETIC and not _known(self.about):
            raise ValueError(f"about {self.about!r} is no cause, no technique, and not {ARITHMETIC!r}")
        return self


class Fact(FromFile):
    """Something that the interviewer knows and tells when asked."""

    key: str
    asks: str
    """The question in the menu, as a candidate asks it."""
    says: str
    use: Literal["useful", "idle"]
    """Idle: true, and it changes nothing here."""
    changes: str = ""
    """What a useful one bears on: a cause or technique of stated.toml."""

    @model_validator(mode="after")
    def _bears_on_something(self) -> "Fact":
        if (self.use == "useful") != bool(self.changes):
            raise ValueError("a useful fact says what it `changes`, an idle one doesn't")
        if self.changes and not _known(self.changes):
            raise ValueError(f"changes {self.changes!r} is no cause and no technique")
        return self


class Talk(FromFile):
    """One file."""

    statements: tuple[Statement, ...] = ()
    facts: tuple[Fact, ...] = ()
    derived: Mapping[str, str | list[Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_no_twins(self) -> "Talk":
        for words in ([each.key for each in self.facts], [each.says for each in self.statements]):
            if twins := [each for each in words if words.count(each) > 1]:
                raise ValueError(f"twice: {twins[0]!r}")
        return self


@dataclass(frozen=True)
class DrawnStatement:
    """A statement in one draw: with its numbers, and decided."""

    number: int
    """Its place in the file, from 0."""
    says: str
    is_true: bool
    because: str
    about: str
    source: str = ""


@dataclass(frozen=True)
class DrawnTalk:
    """Statements and facts of a drill in one draw."""

    drill: DrawnDrill
    talk: Talk

    @cached_property
    def claims(self) -> tuple[DrawnStatement, ...]:
        """All statements. Raises TalkError: one can't be decided."""
        return tuple(self._claims())

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """All facts, in an order that follows from the seed. Raises TalkError: a name in one is unknown."""
        told = [
            each.model_copy(
                update={"asks": self._with_numbers(place, each.asks), "says": self._with_numbers(place, each.says)}
            )
            for place, each in ((f"facts, {each.key!r}", each) for each in self.talk.facts)
        ]
        random.Random(f"facts {self.drill.id} {self.drill.seed}").shuffle(told)
        return tuple(told)

    def put(self) -> tuple[DrawnStatement, ...]:
        """The statements that the interviewer puts on the table: true and false ones mixed, by the draw's seed."""
        chance = random.Random(f"statements {self.drill.id} {self.drill.seed}")
        num_true = chance.choice(TRUE_OF_THEM)
        clear = [claim for claim in self.claims if not self.is_close(claim)]
        true, false = ([c for c in clear if c.is_true is wanted] for wanted in (True, False))
        chosen = chance.sample(true, min(num_true, len(true))) + chance.sample(false, min(PUT - num_true, len(false)))
        chance.shuffle(chosen)
        return tuple(chosen)

    def is_close(self, claim: DrawnStatement) -> bool:
        """Whether it would be decided the other way if one of the numbers that have to be worked out were a little off:
        such a statement asks for luck with the rounding.
        """
        statement, values = self.talk.statements[claim.number], self._names[0]
        if statement.is_exact:
            return False
        shown = {*self.drill.numbers.given, *re.findall(r"{(\w+)", statement.says)}
        worked_out = {
            name: value
            for name in set(re.findall(r"[a-z_]\w*", statement.true_if)) - shown
            if isinstance(value := values.get(name), int | float)
        }
        return any(
            self._turns(statement.true_if, claim.is_true, name, type(value)(value * (1 + off)))
            for name, value in worked_out.items()
            for off in (-OFF_BY, OFF_BY)
        )

    def _turns(self, expression: str, is_true: bool, name: str, value: float) -> bool:
        try:
            return evaluate(expression, {**self._names[0], name: value}) is not is_true
        except FormulaError:  # such a value can't be
            return False

    def fact(self, key: str) -> Fact:
        """Raises TalkError: there is none of that key."""
        for each in self.facts:
            if each.key == key:
                return each
        raise TalkError(f"there is no question {key!r}; there are: {', '.join(each.key for each in self.facts)}")

    def _claims(self) -> Iterator[DrawnStatement]:
        for number, each in enumerate(self.talk.statements):
            place = f"statement {number + 1}, {each.says[:40]!r}"
            is_true = each.holds
            if each.true_if:
                try:
                    is_true = evaluate(each.true_if, self._names[0])
                except FormulaError as error:
                    raise TalkError(f"{self._at(place)}: {error}") from error
            if not isinstance(is_true, bool):
                raise TalkError(f"{self._at(place)}: true_if gives {is_true!r}, which is neither true nor false")
            says, because = (self._with_numbers(place, text) for text in (each.says, each.because))
            yield DrawnStatement(number, says, is_true, because, each.about, each.source)

    @cached_property
    def _names(self) -> tuple[dict[str, Any], dict[str, Amount]]:
        """What expressions see, and what texts can show."""
        numbers = self.drill.numbers
        try:
            shown, values = derived(numbers.names, self.talk.derived)
        except FormulaError as error:
            raise TalkError(f"{self._at('derived')}: {error}") from error
        return values, {**numbers.by_name, **shown}

    def _with_numbers(self, place: str, text: str) -> str:
        try:
            return str(filled(text, self._names[1]))
        except (KeyError, ValueError, IndexError) as error:
            raise TalkError(f"{self._at(place)}: no number {error} for {text!r}") from error

    def _at(self, place: str) -> str:
        return f"{self.drill.id}.toml, seed {self.drill.seed}, {place}"


def has_talk(drill_id: str) -> bool:
    return (HERE / f"{drill_id}.toml").exists()


def talk_of(drill: DrawnDrill) -> DrawnTalk:
    """Empty where there is no file of that name. Raises TalkError: its file has a mistake."""
    return DrawnTalk(drill, read(drill.id))


@cache
def read(drill_id: str) -> Talk:
    """One file as it is written; empty where there is none. Raises TalkError."""
    if not has_talk(drill_id):
        return Talk()
    return parsed((HERE / f"{drill_id}.toml").read_text(encoding="utf-8"), f"{drill_id}.toml")


def parsed(text: str, name: str) -> Talk:
    """Raises TalkError: it is no TOML, or not of this form; the words name the place.

    Args:
        name: of the file, for the error.
    """
    try:
        return Talk.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TalkError(f"{name}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = " ".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        raise TalkError(f"{name}, {place or 'as a whole'}: {first['msg']}") from error


def shortcomings(talk: DrawnTalk) -> list[str]:
    """What an author still has to mend, in words; none = fit to be used. Raises TalkError, as reading it does."""
    found = []
    num_true = sum(each.is_true for each in talk.claims)
    if len(talk.claims) < LEAST_STATEMENTS:
        found.append(f"{len(talk.claims)} statements, at least {LEAST_STATEMENTS} are wanted")
    if min(num_true, len(talk.claims) - num_true) < max(LEAST_OF_EACH, len(talk.claims) // 3):
        found.append(f"{num_true} of {len(talk.claims)} are true: about half should be")
    if len(talk.facts) not in FACTS:
        found.append(f"{len(talk.facts)} facts, {FACTS.start} to {FACTS.stop - 1} are wanted")
    if not any(each.use == "idle" for each in talk.facts) or sum(each.use == "useful" for each in talk.facts) < 3:
        found.append("facts should mix useful (three at least) and idle ones")
    return found

"""What a design round is, as a file of library/ says it, and one draw of it with its numbers."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from course.drills.amounts import Amount
from course.rounds.board import Edges, boxes_of, is_kept, read_edges
from course.rounds.errors import RoundFileError
from course.rounds.numbers import RoundNumbers, SpokenAmount
from minillm.core.brief import brief
from minillm.strict_model import StrictModel

AREAS = {
    "requirements": "requirements",
    "envelope": "envelope",
    "boxes": "boxes",
    "dive_1": "first deep dive",
    "dive_2": "second deep dive",
    "failure": "a failure",
    "change": "a change of mind",
}
"""The stages of each round, in order. Each is judged by itself."""
COLUMNS = ("junior", "senior", "staff")
LEAST_STATEMENTS, SHOWN_STATEMENTS = 12, 8
TRUE_AMONG_SHOWN = (3, 4, 5)
"""How many of the shown statements are true, as a seed draws it: nobody can count them off."""


class _FromFile(StrictModel):
    """A part of a round's file; a misspelt field is an error. Its texts may have {names} of numbers."""

    _error = RoundFileError


class Truth(_FromFile):
    """Something that is true or false of this case."""

    true_if: str = ""
    """A Python expression over the round's numbers."""
    holds: bool | None = None
    """Where nothing can be computed."""

    @model_validator(mode="after")
    def _is_decided(self) -> "Truth":
        if bool(self.true_if) == (self.holds is not None):
            raise ValueError("say either true_if or holds")
        return self


class InterviewerFact(_FromFile):
    """What the interviewer knows, and says when asked."""

    key: str
    asks: str
    """The question in the menu."""
    says: str
    use: Literal["useful", "idle"]
    changes: str = ""
    """Useful ones: what in the design depends on it."""


class Component(_FromFile):
    """A box of the menu."""

    key: str
    name: str
    extra: str = ""
    """Why no requirement asks for it. Empty for a box that belongs there, or may."""


class BoardRule(_FromFile):
    """What holds of any sound design."""

    key: str
    says: str
    because: str
    kind: Literal["reach", "through", "apart", "no_edge"]
    start: str
    end: str
    by: tuple[str, ...] = ()


class Commitment(_FromFile):
    """Something that a candidate hands in."""

    key: str
    asks: str


class AskedNumber(Commitment):
    """A number to work out."""

    of: str
    """The name of a derived number."""
    tempting: dict[str, str] = Field(default_factory=dict)
    """Names of numbers that a usual slip gives, and what the slip is."""
    because: str
    """How it is worked out."""


class Option(Truth):
    """An entry of a choice's menu."""

    key: str
    says: str
    because: str = ""

    @model_validator(mode="before")
    @classmethod
    def _is_wrong_unless_said(cls, written: dict[str, Any]) -> dict[str, Any]:
        return written if {"true_if", "holds"} & set(written) else {**written, "holds": False}


class MenuDecision(Commitment):
    """A decision: one entry of a menu. Several may be right."""

    options: tuple[Option, ...] = Field(min_length=3)


class RoundStatement(Truth):
    """A sentence that the interviewer puts on the table."""

    says: str
    because: str
    about: str
    source: str = ""
    """Where it is written, if `holds` decides it."""

    @model_validator(mode="after")
    def _has_a_source(self) -> "RoundStatement":
        if bool(self.source) != (self.holds is not None):
            raise ValueError("a statement without true_if names its source, and no other does")
        return self


class Pushback(_FromFile):
    """What the interviewer asks back. The first one of a stage whose condition is met is asked; one has none."""

    key: str
    asks: str
    replies: tuple[Option, ...] = Field(min_length=3)
    """A wrong one's `because` is what the interviewer comes back with, once."""
    if_wrong: str = ""
    """A number or choice of this stage that was committed wrongly, or not at all."""
    if_chose: str = ""
    """choice=option."""
    if_broken: str = ""
    """A rule of the board."""
    if_unasked: str = ""
    """A fact."""


class Stage(_FromFile):
    """A part of the conversation."""

    key: str
    title: str
    minutes: int
    says: str
    """How the interviewer opens it. It may use what earlier stages asked for."""
    numbers: tuple[AskedNumber, ...] = ()
    choices: tuple[MenuDecision, ...] = ()
    statements: tuple[RoundStatement, ...] = ()
    pushbacks: tuple[Pushback, ...] = ()

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        return (*self.numbers, *self.choices)


class Decision(_FromFile):
    """A decision that was made, and whether it survives the change of mind."""

    says: str
    falls_if: str
    """An expression over the changed numbers; was.NAME is a number before the change."""
    because: str


class ChangeOfMind(_FromFile):
    """One fact changes."""

    given: dict[str, tuple[str | float, ...]]
    decisions: tuple[Decision, ...] = Field(min_length=4)


class Source(_FromFile):
    """Where a prompt of this kind was reported, or where a fact is written."""

    url: str
    says: str


class DesignRound(_FromFile):
    """One round, as its author wrote it."""

    id: str
    title: str
    topics: tuple[str, ...]
    round: str
    """Where such a prompt is asked: phone screen, onsite."""
    level: str
    opening: str
    hardware: str
    """What it runs on, for the list."""
    model: str
    sources: tuple[Source, ...] = Field(min_length=1)
    given: dict[str, tuple[str | float, ...]]
    """A unit, and the options of which a seed draws one, the classic first."""
    derived: dict[str, str | tuple[Any, ...]]
    facts: tuple[InterviewerFact, ...] = Field(min_length=10, max_length=15)
    components: tuple[Component, ...]
    rules: tuple[BoardRule, ...] = Field(min_length=4)
    stages: tuple[Stage, ...]
    change: ChangeOfMind
    rubric: dict[str, tuple[str, str, str]]
    """By area, what a junior, a senior and a staff answer does with this very prompt."""
    design: str
    """A sound design, as arrows."""
    conversation: str
    """How a staff candidate talked through it."""

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [("id", self.id)]

    @model_validator(mode="after")
    def _fits_together(self) -> "DesignRound":
        wanted = list(AREAS)
        if [stage.key for stage in self.stages] != wanted or list(self.rubric) != wanted:
            raise ValueError(f"stages and rubric must be {wanted}, in that order")
        boxes = {each.key for each in self.components}
        named = {box for rule in self.rules for box in (rule.start, rule.end, *rule.by)}
        if named - boxes:
            raise ValueError(f"rules name boxes that aren't in the menu: {sorted(named - boxes)}")
        for stage in self.stages:
            if stage.statements and len(stage.statements) < LEAST_STATEMENTS:
                raise ValueError(f"{stage.key} needs at least {LEAST_STATEMENTS} statements to draw from")
            if stage.pushbacks and _condition(stage.pushbacks[-1]):
                raise ValueError(f"the last pushback of {stage.key} must be one for every answer")
            keys = {each.key for each in stage.commitments}
            for each in stage.pushbacks:
                if not {each.if_wrong, each.if_chose.partition("=")[0]} <= {"", *keys}:
                    raise ValueError(f"pushback {each.key} asks about what {stage.key} doesn't ask for")
                if not {each.if_broken} <= {"", *(rule.key for rule in self.rules)}:
                    raise ValueError(f"pushback {each.key} names no rule: {each.if_broken}")
                if not {each.if_unasked} <= {"", *(fact.key for fact in self.facts)}:
                    raise ValueError(f"pushback {each.key} names no fact: {each.if_unasked}")
        return self

    @property
    def minutes(self) -> int:
        return sum(stage.minutes for stage in self.stages)

    @property
    def questions(self) -> int:
        """How many questions there is time for: as many as facts matter."""
        return sum(fact.use == "useful" for fact in self.facts)

    def drawn(self, seed: int = 0) -> "DrawnRound":
        return DrawnRound(self, seed)


def _condition(pushback: Pushback) -> str:
    return pushback.if_wrong or pushback.if_chose or pushback.if_broken or pushback.if_unasked


@dataclass(frozen=True)
class DrawnRound:
    """A round with its numbers drawn. Equal seeds give equal numbers; seed 0 is the classic."""

    round: DesignRound
    seed: int

    __repr__ = brief

    @cached_property
    def numbers(self) -> RoundNumbers:
        return RoundNumbers(self._given(self.round.given), self.round.derived)

    @cached_property
    def changed(self) -> RoundNumbers:
        """After the change of mind."""
        given = self._given(self.round.given) | self._given(self.round.change.given)
        return RoundNumbers(given, self.round.derived, self.numbers)

    def fill(self, text: str) -> str:
        """A text with this draw's numbers."""
        return self.numbers.fill(text)

    def stage(self, key: str) -> Stage:
        return next(stage for stage in self.round.stages if stage.key == key)

    def fact(self, key: str) -> InterviewerFact:
        """Raises KeyError if there is none."""
        return {fact.key: fact for fact in self.round.facts}[key]

    @cached_property
    def menu(self) -> tuple[InterviewerFact, ...]:
        """All facts in an order that tells nothing."""
        return tuple(self._random("facts").sample(self.round.facts, len(self.round.facts)))

    def is_true(self, truth: Truth) -> bool:
        return truth.holds if truth.holds is not None else bool(self.numbers.value(truth.true_if))

    def falls(self, decision: Decision) -> bool:
        """Whether the change of mind topples it."""
        return bool(self.changed.value(decision.falls_if))

    def asked(self, number: AskedNumber) -> Amount:
        """The number that is asked for."""
        return self.numbers.amounts[number.of]

    def statements(self, stage: Stage) -> tuple[RoundStatement, ...]:
        """Those on the table: true and false ones mixed, how many of each is left open."""
        if not stage.statements:
            return ()
        chance = self._random(stage.key)
        true = [each for each in stage.statements if self.is_true(each)]
        false = [each for each in stage.statements if each not in true]
        least = SHOWN_STATEMENTS - len(false)
        count = min(max(chance.choice(TRUE_AMONG_SHOWN), least), len(true))
        drawn = chance.sample(true, count) + chance.sample(false, SHOWN_STATEMENTS - count)
        return tuple(chance.sample(drawn, len(drawn)))

    def options(self, choice: MenuDecision | Pushback) -> dict[str, str]:
        """What can be chosen, by key, in an order that tells nothing."""
        entries = choice.options if isinstance(choice, MenuDecision) else choice.replies
        shuffled = self._random(choice.key).sample(entries, len(entries))
        return {each.key: self.fill(each.says) for each in shuffled}

    def is_right(self, choice: MenuDecision | Pushback, picked: str) -> bool:
        entries: Sequence[Option] = choice.options if isinstance(choice, MenuDecision) else choice.replies
        return any(each.key == picked and self.is_true(each) for each in entries)

    def broken(self, edges: Edges) -> list[BoardRule]:
        """The rules that a design doesn't keep."""
        return [each for each in self.round.rules if not is_kept(each.kind, edges, each.start, each.end, each.by)]

    def extras(self, edges: Edges) -> list[Component]:
        """Boxes in it that no requirement asks for."""
        used = boxes_of(edges)
        return [each for each in self.round.components if each.extra and each.key in used]

    @cached_property
    def design(self) -> Edges:
        """The sample's."""
        return read_edges(self.round.design, [each.key for each in self.round.components])

    def _random(self, about: str) -> random.Random:
        return random.Random(f"{self.round.id} {self.seed} {about}")

    def _given(self, written: Mapping[str, tuple[str | float, ...]]) -> dict[str, Amount]:
        chance = random.Random(self.seed)
        found: dict[str, Amount] = {}
        for name, (unit, *options) in written.items():
            drawn = chance.choice(options) if self.seed and len(options) > 1 else options[0]
            found[name] = SpokenAmount(float(drawn), str(unit))
        return found

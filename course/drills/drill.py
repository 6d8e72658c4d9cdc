"""What a drill is: a prompt with numbers, what follows from them, a rubric for all graders, five sample answers."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from course.drills.amounts import Amount
from minillm.core.brief import brief
from minillm.core.errors import MinillmError

LEVELS = ("weak", "passing", "strong", "staff")
FLUENT = "fluent"
"""The sample that reads well and is false."""
SAMPLES = (*LEVELS, FLUENT)
ROUNDS = ("screen", "troubleshooting", "estimation", "design")
BARS = ("mid", "senior", "staff")
DIMENSIONS = {
    "diagnosis": "diagnosis by phase",
    "secondary": "secondary problem",
    "interventions": "ranked interventions",
    "evidence": "evidence and arithmetic",
    "questions": "open questions",
    "operations": "cost and operations",
    "communication": "communication",
}
HERE = Path(__file__).parent


class UnknownDrillError(MinillmError):
    """There is no drill of that name."""


class PromptDraw:
    """Chooses the numbers of one variant. Seed 0 always takes the first option: the classic."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed) if seed else None

    def __call__(self, *options: float) -> float:
        """One option is no choice, and takes nothing from the generator."""
        return self._random.choice(options) if self._random and len(options) > 1 else options[0]


@dataclass(frozen=True)
class Numbers:
    """What a drill's prompt gives, and what follows from that."""

    given: Mapping[str, Amount]
    derived: Mapping[str, Amount]
    tempting: Mapping[str, Amount] = field(default_factory=dict)
    """What a popular wrong formula gives: shown in texts, credited nowhere."""
    names: Mapping[str, Any] = field(default_factory=dict)
    """All of them as plain values, in base units, and the steps on the way: what expressions see."""

    @property
    def by_name(self) -> dict[str, Amount]:
        return {**self.given, **self.derived, **self.tempting}


class FromFile(BaseModel):
    """Something that is written in a TOML file; a misspelt field is an error. Its texts may have {names} of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Commit(FromFile):
    """What is handed in beside the prose, and matched exactly or within a tolerance."""

    dominant: str = ""
    """A cause of stated.toml, as `second` is."""
    second: str = ""
    number: str = ""
    """The number that was asked for; its unit may stand behind it."""
    unit: str = ""
    """One of amounts.UNITS, where it doesn't."""
    fixes: tuple[str, ...] = ()
    """Techniques of stated.toml, the most important first."""
    finding: str = ""
    """What would change your mind: the key of a fact (talk/) that could come out so."""
    then: str = ""
    """The technique that would come first then."""


class Asked(FromFile):
    """The number that a drill asks for."""

    name: str
    """The name of a derived number."""
    asks: str


class Key(FromFile):
    """What of a commit is right: points from 0 to 1 of each cause; of each fix, negative where it harms."""

    dominant: dict[str, float]
    second: dict[str, float]
    number: Asked
    fixes: dict[str, float]


class RubricCriterion(FromFile):
    """One thing that is judged apart from all others."""

    key: str
    """One of DIMENSIONS."""
    asks: str
    anchors: tuple[str, str, str, str]
    """What an answer of each level does."""

    @property
    def name(self) -> str:
        return DIMENSIONS[self.key]

    def with_anchors(self) -> str:
        """What is asked, and a line for each level."""
        return "\n".join([self.asks, *map(": ".join, zip(LEVELS, self.anchors))])


class FollowUp(FromFile):
    """What the interviewer asks next, if all that is written of the answer holds."""

    asks: str
    if_dominant: tuple[str, ...] = ()
    unless_dominant: tuple[str, ...] = ()
    if_second: tuple[str, ...] = ()
    unless_second: tuple[str, ...] = ()
    if_fix: tuple[str, ...] = ()
    unless_fix: tuple[str, ...] = ()
    number: str = ""
    """right, wrong or missing."""


class SampleAnswer(Commit):
    """What a sample answer commits to, and how it is to be graded."""

    grades: dict[str, str] = {}
    """By criterion, where it isn't the level that the sample was written for."""
    why: dict[str, str] = {}
    """By criterion, where the anchor of that level would say too little."""


class Rubric(FromFile):
    """What all three graders share."""

    commit: Key
    criteria: tuple[RubricCriterion, ...] = Field(min_length=4, max_length=7)
    must_say: tuple[str, ...]
    tempting: dict[str, str] = {}
    """What is wrong in a popular formula, by the name of the number that it gives."""
    follow_ups: tuple[FollowUp, ...]
    samples: dict[str, SampleAnswer]


@dataclass(frozen=True)
class Drill:
    """One drill, as its author wrote it.

    Args:
        title: a line for the list.
        minutes: on the clock.
        phases: its topic, by what is slow or scarce.
        round: of an interview in which it would be put: one of ROUNDS.
        level: that it tells from the one below: one of BARS.
        numbers: from a draw to what the prompt gives and what follows from it.
        source: a published question that it is close to; empty = written for this course.
    """

    id: str
    title: str
    minutes: int
    phases: str
    round: str
    level: str
    numbers: Callable[[PromptDraw], Numbers]
    rubric: Rubric
    source: str = ""

    __repr__ = brief

    @property
    def tags(self) -> str:
        """What it is about. Shown when it is over: a topic is half of the answer."""
        origin = f"Close to {self.source}" if self.source else "Written for this course"
        return f"{self.title} ({self.id}). Phases: {self.phases}. Round: {self.round}, {self.level}. {origin}."

    def drawn(self, seed: int = 0) -> "DrawnDrill":
        return DrawnDrill(self, seed)


@dataclass(frozen=True)
class DrawnDrill:
    """A drill with its numbers drawn. Equal seeds give equal numbers."""

    drill: Drill
    seed: int

    __repr__ = brief

    @property
    def id(self) -> str:
        return self.drill.id

    @cached_property
    def numbers(self) -> Numbers:
        return self.drill.numbers(PromptDraw(self.seed))

    @cached_property
    def rubric(self) -> Rubric:
        """With this draw's numbers in its texts."""
        return Rubric.model_validate(filled(self.drill.rubric.model_dump(), self.numbers.by_name))

    @property
    def asked(self) -> Amount:
        """The number that is asked for."""
        return self.numbers.derived[self.rubric.commit.number.name]

    @cached_property
    def room(self) -> float:
        """The share within which a number is the one that was asked for: no number of the prompt passes for it."""
        return self.asked.room(*self.numbers.given.values(), *self.numbers.tempting.values())

    @property
    def opening(self) -> str:
        """The prompt's first sentence: what a list shows of it."""
        return re.split(r"(?<=[.?!])\s", self.prompt)[0].strip('"“”')

    @property
    def prompt(self) -> str:
        return self._texts["prompt"]

    @property
    def impossible(self) -> str:
        """What the prompt's own numbers make impossible, or imply without saying so. Part of the solution."""
        return self._texts["impossible"]

    @property
    def answers(self) -> dict[str, str]:
        """All samples, by level, and the fluent one. Shown after grading only."""
        return {name: self._texts[name] for name in SAMPLES}

    @property
    def model_answers(self) -> dict[str, str]:
        return {level: self._texts[level] for level in LEVELS}

    def grade_of(self, sample: str, key: str) -> str:
        """The level of a sample answer by a criterion."""
        return self.rubric.samples[sample].grades.get(key, sample)

    @cached_property
    def _texts(self) -> dict[str, str]:
        written = (HERE / "texts" / f"{self.drill.id}.md").read_text(encoding="utf-8")
        parts = re.split(r"^## (\w+)\n", written, flags=re.M)
        return filled({name: text.strip() for name, text in zip(parts[1::2], parts[2::2])}, self.numbers.by_name)


def filled(written: object, values: Mapping[str, Amount]) -> object:
    """The same with all {names} in its texts replaced."""
    if isinstance(written, str):
        return written.format_map(values)
    if isinstance(written, dict):
        return {name: filled(each, values) for name, each in written.items()}
    return [filled(each, values) for each in written] if isinstance(written, list | tuple) else written

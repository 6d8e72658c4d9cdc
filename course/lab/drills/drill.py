"""What a drill is: a prompt with numbers, what follows from them, a rubric, and model answers of four levels."""

import functools
import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from course.lab.drills.amounts import Amount
from course.lab.drills.reading import Numbers
from minillm.core.errors import MinillmError

LEVELS = ("weak", "passing", "strong", "staff")
DIMENSIONS = {
    "diagnosis": "diagnosis by phase",
    "secondary": "secondary problem",
    "interventions": "ranked interventions",
    "evidence": "evidence and arithmetic",
    "questions": "open questions",
    "operations": "cost and operations",
    "communication": "communication",
}
WEIGHTS = dict(zip(DIMENSIONS, (3.0, 1.0, 3.0, 2.0, 2.0, 1.0, 1.0)))
HERE = Path(__file__).parent


class UnknownDrillError(MinillmError):
    """There is no drill of that name."""


class Draw:
    """Chooses the numbers of one variant. Seed 0 always takes the first option: the classic."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed) if seed else None

    def __call__(self, *options: float) -> float:
        """One option is no choice, and takes nothing from the generator."""
        return self._random.choice(options) if self._random and len(options) > 1 else options[0]


class _FromFile(BaseModel):
    """Something that is written in a TOML file; a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Trap(_FromFile):
    """A proposal that costs points unless what makes it right stands beside it."""

    rule: str
    unless: tuple[str, ...]
    """Rules, any of which in the same or a neighbouring sentence makes it a reasoned proposal."""
    advice: str
    price: float = 0.3


class Slip(_FromFile):
    """A popular error: a sentence that is wrong wherever it stands."""

    rule: str
    unless: str
    """Atoms: with one of them in the sentence, the rule does not apply."""
    right: str
    """The right statement."""


class FollowUp(_FromFile):
    """What the interviewer asks next, if a rule is found in the answer (or, with `missing`, if it is not)."""

    rule: str
    asks: str
    missing: bool = False


class Rules(_FromFile):
    """What holds in every drill."""

    traps: tuple[Trap, ...]
    slips: tuple[Slip, ...]
    follow_ups: tuple[FollowUp, ...]

    @classmethod
    @functools.cache
    def read(cls) -> "Rules":
        return cls.model_validate(tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8")))


class Rubric(_FromFile):
    """What is looked for, as rules of patterns.py; a tuple holds alternatives."""

    diagnosis: tuple[str, ...]
    """Names what is the matter, or what the question is really about."""
    mechanism: tuple[str, ...]
    """Says why, or by which number."""
    moves: dict[str, str]
    """Good interventions (a concept each), with the concepts that tag them: the phase or quantity that they act on."""
    unknowns: str
    """Concepts that a useful question asks about."""
    apart: tuple[str, ...] = ("split + queue|prefill|ttft + decode|itl|prefill", "~ question|depend + queue + prefill")
    """Tells two explanations apart, or rules one out."""
    secondary: tuple[str, ...] = ()
    secondary_why: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    """Notices what the prompt's own numbers make impossible."""
    traps: tuple[Trap, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    hints: dict[str, str] = {}
    """By dimension: advice of this drill, shown where the general one would say less."""


@dataclass(frozen=True)
class Drill:
    """One drill, as its author wrote it.

    Args:
        title: a line for the list.
        minutes: on the clock.
        numbers: from a draw to what the prompt gives and what follows from it.
        phases: what it practises, for the list.
    """

    id: str
    title: str
    minutes: int
    phases: str
    numbers: Callable[[Draw], Numbers]
    rubric: Rubric

    def drawn(self, seed: int = 0) -> "DrawnDrill":
        return DrawnDrill(self, seed)


@dataclass(frozen=True)
class DrawnDrill:
    """A drill with its numbers drawn. Equal seeds give equal numbers."""

    drill: Drill
    seed: int

    @property
    def id(self) -> str:
        return self.drill.id

    @property
    def rubric(self) -> Rubric:
        return self.drill.rubric

    @cached_property
    def numbers(self) -> Numbers:
        return self.drill.numbers(Draw(self.seed))

    @property
    def prompt(self) -> str:
        return self._texts["prompt"]

    @property
    def impossible(self) -> str:
        """What the prompt's own numbers make impossible, or imply without saying so. Part of the solution."""
        return self._texts["impossible"]

    @property
    def answers(self) -> dict[str, str]:
        """The model answers by level. Shown after submitting only."""
        return {level: self._texts[level] for level in LEVELS}

    @cached_property
    def _texts(self) -> dict[str, str]:
        written = (HERE / "texts" / f"{self.drill.id}.md").read_text(encoding="utf-8")
        parts = re.split(r"^## (\w+)\n", written, flags=re.M)
        values: dict[str, Amount] = {**self.numbers.given, **self.numbers.derived, **self.numbers.tempting}
        return {name: text.strip().format_map(values) for name, text in zip(parts[1::2], parts[2::2])}

"""What an exercise is: its facts, its hints, and the parts that its answer is judged by.

An author writes judges: functions that call the answer, compare, and raise `Mistake`. What the learner then reads, and
all facts, stand in a TOML file beside the judges. Everything else (time limits, other exceptions, points) is taken care
of here and in runner.py. See AUTHORS.md.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from course.grading import Criterion
from course.grading.blame import Mistake, explain
from course.grading.causes import ALIASED, KEEPS, afterthought, cause
from course.grading.remote import Answer, AnswerEndedError

Judge = Callable[..., str | None]
"""Judges one part: (answer, generator, what the part gives besides). Raises Mistake; whatever else is raised is blamed
on the answer. May say what was seen to be right, where the part's praise cannot. The generator is seeded by exercise,
part and seed: the same seed gives the same questions."""


@dataclass(frozen=True)
class Part:
    """One thing an answer is judged by; becomes one criterion."""

    name: str
    points: float
    judge: str
    """The name of a `Judge` in the exercise's module."""
    praise: str = "right"
    """What was seen to be right."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the judge is called with besides, by name: one judge serves several parts."""


@dataclass(frozen=True)
class Hint:
    """A step towards the answer."""

    text: str
    cost: float
    """Share of the exercise's points, 0 to 1."""


@dataclass(frozen=True)
class Exercise:
    """One graded exercise, as its TOML file has it. Its statement, stub and model answer are in `solutions/`; see
    source.py."""

    id: str
    """In kebab case; its module and its TOML file have the same name in snake case."""
    title: str
    lesson: int
    difficulty: int
    """1: follow the example. 2: think. 3: an evening's pride."""
    minutes: int
    entry_points: tuple[str, ...]
    """The functions and classes that the answer defines."""
    parts: tuple[Part, ...]
    hints: tuple[Hint, ...] = ()
    feedback: Mapping[str, str] = field(default_factory=dict)
    """Texts of mistakes, by the names that the judges use."""
    limit_s: float = 3.0
    """Most seconds of CPU time that all parts may take together on a fast core; a slow one gets more. The model answer
    should need less than a fifth."""
    memory_mb: int = 1024
    """Most memory the answer may take on top of what the checker has."""
    needs: tuple[str, ...] = ()
    """Packages that not every machine has. The checker imports them before its clock starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the checker sets before it imports them."""

    @property
    def max_score(self) -> float:
        return sum(part.points for part in self.parts)

    @property
    def missing(self) -> str | None:
        """Why it cannot be done on this machine, for the learner; None if it can."""
        absent = [name for name in self.needs if find_spec(name) is None]
        if not absent:
            return None
        packages = " and ".join(absent)
        return f"this exercise needs {packages}, which is not installed here: leave it out, nothing is lost"

    @property
    def level(self) -> str:
        return "●" * self.difficulty + "○" * (3 - self.difficulty)

    @property
    def module(self) -> ModuleType:
        """Its judges."""
        return import_module(f"course.grading.exercises.{self.id.replace('-', '_')}")

    def grade(self, answer: Answer, seed: int) -> Iterator[Criterion]:
        """Judge part by part. Each criterion comes as soon as it is known, in the parts' order; nothing is raised.

        Args:
            seed: another seed asks other questions of the same kind.
        """
        trouble = None
        for part in self.parts:
            if trouble is not None:
                yield Criterion(part.name, 0.0, part.points, "not reached: the part before never ended")
                continue
            try:
                earned, feedback = self._judged(part, answer, random.Random(f"{self.id}/{part.name}/{seed}"))
            except AnswerEndedError as error:
                earned, feedback = 0.0, (trouble := str(error))
            yield Criterion(part.name, earned, part.points, feedback)

    def _judged(self, part: Part, answer: Answer, rng: random.Random) -> tuple[float, str]:
        judge: Judge = getattr(self.module, part.judge)
        answer.forget()
        try:
            praise = judge(answer, rng, **part.given) or part.praise
            if behind := afterthought(answer):
                return part.points / 2, behind
            return part.points, praise
        except Mistake as mistake:
            behind = cause(answer, mistake.slip is not None)
            if behind and (KEEPS in behind or ALIASED in behind):
                mistake.slip = None  # it was guessed from what had been kept
            words, earned = mistake.words(self.feedback, vars(self.module)), round(mistake.share * part.points, 2)
        except NotImplementedError as error:  # what isn't written has nothing behind it
            return 0.0, explain(error)
        except Exception as error:
            words, earned, behind = explain(error), 0.0, cause(answer)
        return earned, f"{words}{'' if words[-1:] in '.?!' else '.'} {behind}" if behind else words

    def ungraded(self, feedback: str) -> tuple[Criterion, ...]:
        """No points, for one reason that is said once."""
        names = [part.name for part in self.parts]
        words = [feedback, *[f"not reached: see {names[0]!r}"] * (len(names) - 1)]
        return tuple(Criterion(part.name, 0.0, part.points, said) for part, said in zip(self.parts, words))

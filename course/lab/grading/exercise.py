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

from course.lab.grading import Criterion
from course.lab.grading.blame import explain


class Mistake(Exception):
    """An answer does something wrong.

    Args:
        feedback: the name of a text in the exercise's `[feedback]`, or the text itself: what was given, what came, what
            was expected.
        share: of the part's points that are earned all the same, 0 to 1.
        slip: the usual mistake that gives exactly that, if it is one: a name or a text, too.
        fields: what the named text has in braces.
    """

    def __init__(self, feedback: str, share: float = 0.0, *, slip: str | None = None, **fields: Any) -> None:
        super().__init__(feedback)
        self.feedback, self.share, self.slip, self.fields = feedback, share, slip, fields

    def told(self, texts: Mapping[str, str], constants: Mapping[str, Any]) -> str:
        """The feedback in words. Texts may have the constants of the judge's module in braces, too."""
        values = {**constants, **self.fields}
        text = texts[self.feedback].format(**values) if self.feedback in texts else self.feedback
        slip = texts.get(self.slip or "", self.slip)
        return f"{text}. {slip[0].upper()}{slip[1:]}" if slip else text.strip()


class Answer:
    """The functions and classes of an answer, as attributes.

    Args:
        names: what the learner's file or cell defines.
        files: the names of the files it was written in: tracebacks show which lines are the learner's.
    """

    def __init__(self, names: Mapping[str, Any], files: frozenset[str] = frozenset()) -> None:
        self._names = names
        self.files = files

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._names:
            raise Mistake(f"there is no `{name}` in your answer: keep the names of the stub")
        found = self._names[name]
        if not callable(found):
            raise Mistake(f"`{name}` should be a function or a class; yours is {type(found).__name__}")
        return found


Judge = Callable[[Answer, random.Random], str]
"""Judges one part. Returns what was seen to be right; raises Mistake. Whatever else is raised is blamed on the
answer. The generator is seeded by exercise, part and seed: the same seed gives the same questions."""


@dataclass(frozen=True)
class Part:
    """One thing an answer is judged by; becomes one criterion."""

    name: str
    points: float
    judge: str
    """The name of a `Judge` in the exercise's module."""


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
    """Most seconds all parts may take together; the model answer should need less than a fifth."""
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
        return import_module(f"course.lab.grading.exercises.{self.id.replace('-', '_')}")

    def grade(self, answer: Answer, seed: int, begin: Callable[[int], None] = lambda part: None) -> Iterator[Criterion]:
        """Judge part by part. Each criterion comes as soon as it is known, in the parts' order; nothing is raised.

        Args:
            seed: another seed asks other questions of the same kind.
            begin: called with each part's number before it is judged.
        """
        for number, part in enumerate(self.parts):
            begin(number)
            earned, feedback = self._judged(part, answer, random.Random(f"{self.id}/{part.name}/{seed}"))
            yield Criterion(part.name, earned, part.points, feedback)

    def _judged(self, part: Part, answer: Answer, rng: random.Random) -> tuple[float, str]:
        judge: Judge = getattr(self.module, part.judge)
        try:
            return part.points, judge(answer, rng)
        except Mistake as mistake:
            return round(mistake.share * part.points, 2), mistake.told(self.feedback, vars(self.module))
        except BaseException as error:  # sys.exit among them: the answer decides about itself only
            return 0.0, explain(error, answer.files)

    def ungraded(self, feedback: str) -> tuple[Criterion, ...]:
        """No points, for one reason that is said once."""
        names = [part.name for part in self.parts]
        words = [feedback, *[f"not reached: see {names[0]!r}"] * (len(names) - 1)]
        return tuple(Criterion(part.name, 0.0, part.points, said) for part, said in zip(self.parts, words))

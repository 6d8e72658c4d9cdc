"""What an exercise is: its facts, its hints, and the parts that its answer is judged by.

An author writes judges: functions that call the answer, compare, and raise `Mistake` with words for the learner.
Everything else (time limits, other exceptions, points) is taken care of here and in runner.py. See AUTHORS.md.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from course.lab.grading import Criterion
from course.lab.grading.blame import explain


class Mistake(Exception):
    """An answer does something wrong.

    Args:
        feedback: what was given, what came, what was expected, and the usual mistake that gives exactly that.
        share: of the part's points that are earned all the same, 0 to 1.
    """

    def __init__(self, feedback: str, share: float = 0.0) -> None:
        super().__init__(feedback)
        self.feedback = feedback
        self.share = share


class Answer:
    """The functions and classes of an answer, as attributes.

    Args:
        names: what the learner's file or cell defines.
        files: the names of the files it was written in: tracebacks show which lines are the learner's.
    """

    def __init__(self, names: Mapping[str, Any], files: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._files = files

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
    judge: Judge


@dataclass(frozen=True)
class Hint:
    """A step towards the answer."""

    text: str
    cost: float
    """Share of the exercise's points, 0 to 1."""


@dataclass(frozen=True)
class Exercise:
    """One graded exercise. Its text, stub and model answer are in `solutions/`; see source.py."""

    id: str
    """In kebab case; its module has the same name in snake case."""
    title: str
    lesson: int
    difficulty: int
    """1: follow the example. 2: think. 3: an evening's pride."""
    minutes: int
    entry_points: tuple[str, ...]
    """The functions and classes that the answer defines."""
    parts: tuple[Part, ...]
    hints: tuple[Hint, ...] = ()
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

    def grade(self, answer: Answer, seed: int, begin: Callable[[int], None] = lambda part: None) -> Iterator[Criterion]:
        """Judge part by part. Each criterion comes as soon as it is known, in the parts' order; nothing is raised.

        Args:
            seed: another seed asks other questions of the same kind.
            begin: called with each part's number before it is judged.
        """
        for number, part in enumerate(self.parts):
            begin(number)
            yield self._judge(part, answer, random.Random(f"{self.id}/{part.name}/{seed}"))

    def _judge(self, part: Part, answer: Answer, rng: random.Random) -> Criterion:
        try:
            return Criterion(part.name, part.points, part.points, part.judge(answer, rng))
        except Mistake as mistake:
            return Criterion(part.name, round(mistake.share * part.points, 2), part.points, mistake.feedback)
        except BaseException as error:  # sys.exit among them: the answer decides about itself only
            return Criterion(part.name, 0.0, part.points, explain(error, answer._files))

    def ungraded(self, feedback: str) -> tuple[Criterion, ...]:
        """No points, for one reason that is said once."""
        names = [part.name for part in self.parts]
        words = [feedback, *[f"not reached: see {names[0]!r}"] * (len(names) - 1)]
        return tuple(Criterion(part.name, 0.0, part.points, said) for part, said in zip(self.parts, words))

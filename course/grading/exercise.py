"""What an exercise is: its facts, its hints, and the parts that its answer is judged by.

An author writes judges: functions that call the answer, compare, and raise `Mistake`. What the learner then reads, and
all facts, stand in a TOML file beside the judges. Everything else (time limits, other exceptions, points) is taken care
of here and in runner.py. See AUTHORS.md.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from course.grading import Criterion
from course.grading.blame import explain, shown
from course.grading.remote import AnswerEndedError, Link, RemoteValue, identical, repeated, result_of

LOOKED_AT, RECHECKED = 6, 5
"""Questions that are repeated to find what lies behind a mistake, and after each part that was right."""
KEEPS = (
    "Something is kept between calls or shared between objects (a global, a default argument, an attribute of the "
    "class): keep it in `self`, or make it anew"
)
ALIASED = (
    "A list that it was given, or that it handed out, is kept and was changed afterwards by its owner: keep a copy"
)
LOADED_ONCE = "What lies behind it can't be told, for your code can't be loaded a second time"


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

    def words(self, texts: Mapping[str, str], constants: Mapping[str, Any]) -> str:
        """The feedback in words. Texts may have the constants of the judge's module in braces, too."""
        values = {**constants, **self.fields}
        text = texts[self.feedback].format(**values) if self.feedback in texts else self.feedback
        slip = texts.get(self.slip or "", self.slip)
        return f"{text}. {slip[0].upper()}{slip[1:]}" if slip else text.strip()


class Answer:
    """The functions and classes of an answer, as attributes; they run in the answer's own process.

    Args:
        link: the process it is loaded in.
        anew: loads it in another process, with another order of sets and hashes.
    """

    def __init__(self, link: Link, anew: Callable[[], Link]) -> None:
        self.link, self._anew = link, anew
        self._other: Link | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self._exists(name)

        def asked(*arguments: Any, **keywords: Any) -> Any:
            return self.link.call("name", name, arguments, keywords, None, name)

        asked.__name__ = name
        return asked

    def _exists(self, name: str) -> None:
        if name not in self.link.names:
            raise Mistake(f"there is no `{name}` in your answer: keep the names of the stub")
        is_callable, kind = self.link.names[name]
        if not is_callable:
            raise Mistake(f"`{name}` should be a function or a class; yours is {kind}")

    def changing(self, name: str, *arguments: Any) -> tuple[Any, list[Any]]:
        """Call a function that is to change its arguments: the result, and the arguments afterwards."""
        self._exists(name)
        return self.link.changing(name, *arguments)

    def many(self, of: Any, lists: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of many calls of one function (its name) or method, in one go."""
        if isinstance(of, str):
            self._exists(of)
        return self.link.many(of, lists)

    def play(self, of: Any, acts: Sequence[tuple[str, Sequence[Any] | None]]) -> list[Any]:
        """What methods of an object give, called one after the other (None: an attribute), in one go."""
        return self.link.play(of, [(name, copy.deepcopy(arguments and list(arguments))) for name, arguments in acts])

    def thing(self, name: str) -> Any:
        """One of the answer's functions or classes, to hand to a prop."""
        self._exists(name)
        return self.link.ask("named", name)

    def prop(self, name: str, *arguments: Any) -> Any:
        """What a function or class of props.py gives, in the answer's process."""
        return self.link.call("prop", name, arguments, {}, None, "")

    def elsewhere(self) -> "Answer":
        """The same answer in another process."""
        if self._other is None:
            self._other = self._anew()
        return Answer(self._other, self._anew)

    def afterthought(self) -> str | None:
        """What was not asked and shows all the same: arguments that were changed, and results that depend on more than
        the arguments."""
        if self.link.changed:
            return self._changed()
        for session in [each for each in self.link.sessions.values() if len(each.calls) == 1][:RECHECKED]:
            if different := repeated(self.link, session):
                what, before, now = different
                return f"Asked the same again, {what} gave {shown(now)}; before, it gave {shown(before)}. {KEEPS}"
        return None

    def _changed(self) -> str:
        return f"It changes what it is given: {self.link.changed}. Work on a copy"

    def cause(self) -> str | None:
        """What may lie behind a mistake: nothing returned, one result for all, or something kept between calls."""
        link = self.link
        if link.changed:
            return self._changed()
        if link.printed:
            return f"It printed {shown(link.printed.strip())} and gave back None: return it instead"
        try:
            other = self.elsewhere().link
            noted = [each for each in link.sessions.values() if each.is_whole()]
            for session in [*noted[:-LOOKED_AT][:LOOKED_AT], *noted[-LOOKED_AT:]]:
                for spoils, words in ((True, KEEPS), (False, ALIASED)):
                    other.spoils = spoils
                    other.again()
                    if different := repeated(other, session):
                        what, before, now = (each if isinstance(each, str) else shown(each) for each in different)
                        return f"But asked by itself, in a fresh process, {what} gives {now}, not {before}. {words}"
        except AnswerEndedError:
            self._other = None  # that process is gone
        except Exception as error:  # what its top level does, such as making a folder, can't be done twice
            self._other = None
            return f"{LOADED_ONCE}: {explain(error)}"
        return self._one_for_all()

    def _one_for_all(self) -> str | None:
        """The same result whatever was asked, as where the worked example was written into it."""
        first: dict[str, list[Any]] = {}
        for session in self.link.sessions.values():
            if len(session.calls) == 1:
                first.setdefault(session.calls[0][0], []).append(session.calls[0][1:])
        for name, asked in first.items():
            questions = {data for data, _ in asked}
            results = [result_of(reply, self.link) for _, reply in asked]
            plain = [found for found in results if not isinstance(found, (type, RemoteValue))]
            if len(questions) > 3 and len(plain) == len(asked) and all(identical(plain[0], found) for found in plain):
                return f"`{name}` gives {shown(plain[0])} for every question: was the worked example written into it?"
        return None


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
        answer.link.sessions.clear()
        answer.link.changed, answer.link.printed = None, ""
        try:
            praise = judge(answer, rng, **part.given) or part.praise
            if behind := answer.afterthought():
                return part.points / 2, behind
            return part.points, praise
        except Mistake as mistake:
            behind = answer.cause()
            if behind and (KEEPS in behind or ALIASED in behind):
                mistake.slip = None  # it was guessed from what had been kept
            words, earned = mistake.words(self.feedback, vars(self.module)), round(mistake.share * part.points, 2)
        except NotImplementedError as error:  # what isn't written has nothing behind it
            return 0.0, explain(error)
        except Exception as error:
            words, earned, behind = explain(error), 0.0, answer.cause()
        return earned, f"{words}{'' if words[-1:] in '.?!' else '.'} {behind}" if behind else words

    def ungraded(self, feedback: str) -> tuple[Criterion, ...]:
        """No points, for one reason that is said once."""
        names = [part.name for part in self.parts]
        words = [feedback, *[f"not reached: see {names[0]!r}"] * (len(names) - 1)]
        return tuple(Criterion(part.name, 0.0, part.points, said) for part, said in zip(self.parts, words))

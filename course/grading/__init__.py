"""Checks and graded exercises: partial credit, and feedback on the mistake that was made.

Here: the words of both, and the short checks at the end of a lesson (lesson_NN.py). Exercises are in exercise.py,
exercises/ and runner.py; AUTHORS.md says how to write one.

Keys are computed from runs of the engine, never written down. The checks ship with the course, so they
cannot be tamper-proof: they are for you, not against you.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from course.grading.blame import message_of, shown
from course.grading.question import Question
from course.lab import progress

if TYPE_CHECKING:
    from course.grading.card import CheckCard


@dataclass(frozen=True)
class Criterion:
    """One thing an answer is judged by."""

    name: str
    earned: float
    possible: float
    feedback: str
    """What to make of it; aimed at the mistake, when there is one."""
    reveal: str = ""
    """What gives the right answer away: a card (card.py) keeps it for the second try."""

    @property
    def words(self) -> str:
        """All there is to say of it."""
        return joined(self.feedback, self.reveal)


def joined(first: str, second: str) -> str:
    """Two pieces of feedback, either of which may be empty."""
    if first and second and not first.endswith((".", "?", "!")):
        first += "."
    return f"{first} {second}".strip()


@dataclass(frozen=True)
class Result:
    """The graded answer to one question; prints as text and shows as HTML."""

    question: str
    criteria: tuple[Criterion, ...]
    notes: tuple[str, ...] = ()
    """What else there is to say, such as how to repeat the check."""

    @property
    def score(self) -> float:
        return sum(criterion.earned for criterion in self.criteria)

    @property
    def max_score(self) -> float:
        return sum(criterion.possible for criterion in self.criteria)

    def __str__(self) -> str:
        lines = [f"{self.question}: {self.score:g} of {self.max_score:g}"]
        lines += [f"  {_mark(c)} {c.name} ({c.earned:g}/{c.possible:g}): {c.words}" for c in self.criteria]
        return "\n".join([*lines, *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """What `python -m course.grading check --json` prints."""
        criteria = [
            {"name": c.name, "score": c.earned, "max_score": c.possible, "feedback": c.words} for c in self.criteria
        ]
        return {"score": self.score, "max_score": self.max_score, "criteria": criteria}

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from course.lab.display import amounts_kept

        items = "".join(
            f"<li>{_mark(c)} <b>{escape(c.name)}</b> ({c.earned:g}/{c.possible:g}): {escape(c.words)}</li>"
            for c in self.criteria
        )
        notes = "".join(f'<div style="white-space:pre-wrap;opacity:.75">{escape(note)}</div>' for note in self.notes)
        head = f"<b>{escape(self.question)}: {self.score:g} of {self.max_score:g}</b>"
        return {
            "text/html": amounts_kept(f'<div>{head}<ul style="list-style:none">{items}</ul>{notes}</div>'),
            "text/plain": str(self),
        }


def _mark(criterion: Criterion) -> str:
    return "✓" if criterion.earned == criterion.possible else "◐" if criterion.earned else "✗"


NOT_ANSWERED = (Criterion("answer", 0, 1, "not answered yet"),)


class WrongAnswerError(AssertionError):
    """With strict=True: the answer did not earn every point."""


Grader = Callable[[Any], tuple[Criterion, ...]]


class Checks:
    """The checks of one lesson: `checks.card()` shows fields; `checks("q1", answer)` is the same in code.

    Args:
        graders: by question name, a function from an answer to its criteria. It may raise TypeError or
            ValueError for an answer of the wrong kind; the learner then sees the message as feedback.
        questions: what each asks, for the card.
    """

    def __init__(self, graders: Mapping[str, Grader], questions: Mapping[str, Question] | None = None) -> None:
        self._graders = dict(graders)
        self.questions = dict(questions or {})

    def card(self) -> "CheckCard":
        """Fields to answer in."""
        from course.grading.card import CheckCard  # widgets, which the judges' processes shouldn't wait for

        return CheckCard(self, self.questions)

    def __call__(self, question: str, answer: Any, strict: bool = False) -> Result:
        """Grade an answer. Never raises for a learner; with `strict` raises WrongAnswerError unless all is right."""
        result = Result(str(question), self._criteria(question, answer))
        if result.question in self._graders and result.criteria != NOT_ANSWERED:
            progress.note_check(question, result.score, result.max_score)
        if strict and result.score < result.max_score:
            raise WrongAnswerError(str(result))
        return result

    def _criteria(self, question: str, answer: Any) -> tuple[Criterion, ...]:
        if not isinstance(question, str) or question not in self._graders:
            return (Criterion("question", 0, 1, f"there is no {shown(question)} here: try {', '.join(self._graders)}"),)
        asked = self.questions.get(question)
        try:
            if _is_blank(answer):
                return NOT_ANSWERED
            if isinstance(answer, str) and asked is not None and not asked.options:
                answer = asked.read(answer)  # as on the card
            return self._graders[question](answer)
        except ZeroDivisionError:
            return (Criterion("measurement", 0, 1, "this cannot be told from this run: what it compares with is zero"),)
        except Exception as error:  # whatever it is: an object may raise anything when it's compared, or read
            words = f"this check could not read {shown(answer)}: {message_of(error)}"
            return (Criterion("kind of answer", 0, 1, words),)


def _is_blank(answer: Any) -> bool:
    """Whether it's what a notebook has in place of an answer: dots, or dots in one of several places."""
    return (
        answer is None or answer is ... or (isinstance(answer, (tuple, list)) and any(part is ... for part in answer))
    )


def choice(answer: Any, key: str, options: Mapping[str, str]) -> tuple[Criterion, ...]:
    """A named choice. `options` says of each what the run shows about it: the feedback for choosing it."""
    written = str(answer).strip().lower().replace("_", " ")
    if written not in options:
        raise ValueError(f"choose one of {', '.join(options)}")
    reveal = "" if written == key else f"The answer here: {key}."
    return (Criterion("choice", float(written == key), 1, options[written], reveal),)


def close_to(answer: Any, key: float, what: str, tolerance: float = 0.1) -> Criterion:
    """A number: full marks within `tolerance` of the key, half within three times that. Near a key of 0 is only 0."""
    value = as_number(answer)
    off = abs(value - key) / abs(key) if key else 0.0 if math.isclose(value, 0, abs_tol=1e-9) else math.inf
    earned = 1.0 if off <= tolerance else 0.5 if off <= 3 * tolerance else 0.0
    hint = ""
    if not earned and key:
        ratio = value / key
        hint = " A factor of 1000 off: seconds or milliseconds?" if ratio > 300 or 0 < ratio < 1 / 300 else ""
    return Criterion(what, earned, 1, f"You said {value:g}.{hint}", f"It is {key:.3g} here.")


def as_number(answer: Any) -> float:
    """An answer as a number.

    Raises:
        ValueError: it's a text that isn't one, or that names a unit of another kind.
    """
    is_truth = isinstance(answer, bool) or str(getattr(answer, "dtype", "")).endswith("bool")
    try:
        if is_truth or isinstance(answer, complex | bytes | bytearray | memoryview):  # some of which float() takes
            raise ValueError("no number, though Python can make one of it")
        return float(answer)
    except (TypeError, ValueError):
        raise ValueError("it takes one number, such as 8.3, in the unit that's asked for or one of its kind") from None


def as_count(answer: Any) -> int:
    """An answer as a whole number.

    Raises:
        ValueError: it isn't one: 4.9 isn't 4.
    """
    value = as_number(answer)
    if not value.is_integer():
        raise ValueError("it takes a whole number, such as 8")
    return int(value)


NEAR_A_SLIP = 0.05
"""How far an answer may be from a known slip, to be taken for it; never further than the key allows."""


def near(
    answer: Any,
    key: float,
    what: str,
    slips: Mapping[float, str],
    tolerance: float = 0.05,
    percent: bool = False,
    slip_within: float = NEAR_A_SLIP,
) -> Criterion:
    """A number as in `close_to`; where it is off by a known slip, the slip is named, and earns nothing.

    Args:
        slips: by the number that it leads to, what went wrong.
        percent: a share; what is above 1 is taken for a percentage.
        slip_within: smaller where a slip may be so near the key that it would take half a point from a near miss.
    """
    value = as_number(answer)
    if percent and 1 < value <= 100:
        value /= 100
    graded = close_to(value, key, what, tolerance)
    if graded.earned < 1:
        for slip, words in slips.items():
            if abs(value - slip) <= min(tolerance, slip_within) * abs(slip):
                return Criterion(what, 0.0, 1, f"{words[:1].upper()}{words[1:]}. {graded.feedback}", graded.reveal)
    return graded

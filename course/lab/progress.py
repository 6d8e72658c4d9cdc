"""How far a learner has come: lessons opened, predictions locked and scored, checks answered.

Lessons report it by themselves (lab.py, predict.py, grading/); the start page reads it. It is one small JSON file on
this machine (kept.py): it is never sent anywhere, it can be exported, and it can be reset.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel, lesson_here


class Answered(StoredModel):
    """The best answer so far to one question of a check."""

    score: float
    possible: float


class LessonRecord(StoredModel):
    opened: str
    """When it was first opened; ISO 8601, UTC, as all moments here."""
    last: str
    """When anything last happened in it."""
    predictions: dict[str, float | None] = Field(default_factory=dict)
    """Points of each prediction, by its key: 0 to 1 from a run; None = locked, and no run has scored it yet."""
    checks: dict[str, Answered] = Field(default_factory=dict)


class Progress(StoredModel):
    lessons: dict[str, LessonRecord] = Field(default_factory=dict)
    """Lessons by number, such as "06"."""

    def lesson(self, number: str) -> LessonRecord:
        """The record of a lesson, which is opened now if it has never been."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = self.lessons.setdefault(number, LessonRecord(opened=now, last=now))
        record.last = now
        return record

    @property
    def latest(self) -> str | None:
        """The number of the lesson in which something happened last; None = nothing has happened yet."""
        return max(self.lessons, key=lambda number: self.lessons[number].last, default=None)


FILE = JsonStore("progress.json", Progress)


def _note(write: Callable[[LessonRecord], None]) -> None:
    """Write to the record of this notebook's lesson, if it is one."""
    if number := lesson_here():
        FILE.change(lambda progress: write(progress.lesson(number)))


def note_opened() -> None:
    """This notebook's lesson has been opened."""
    _note(lambda _: None)


def note_prediction(key: str, points: float | None) -> None:
    """A prediction has been locked (None), or scored. A score stays when it is locked anew in another session."""

    def write(lesson: LessonRecord) -> None:
        lesson.predictions[key] = lesson.predictions.get(key) if points is None else points

    if key:
        _note(write)


def note_untold(key: str) -> None:
    """A locked prediction met a run that cannot tell: done with, and no points unless an earlier run gave some."""

    def write(lesson: LessonRecord) -> None:
        lesson.predictions[key] = lesson.predictions.get(key) or 0.0

    if key:
        _note(write)


def note_check(question: str, score: float, possible: float) -> None:
    """A question of the check has been answered. The best answer counts."""

    def write(lesson: LessonRecord) -> None:
        if question not in lesson.checks or score > lesson.checks[question].score:
            lesson.checks[question] = Answered(score=score, possible=possible)

    _note(write)

"""A class from its learners' histories: what one learner exports, and the tables that a teacher makes of many.

Everything in an export comes from files that lie on the learner's own machine and can be edited there. It shows who is
where, and what to talk about. To grade for a certificate, rerun the answers (docs/teaching.md).
"""

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from course.drills import attempts
from course.grading.attempt import graded
from course.grading.exercise import Exercise
from course.grading.exercises import catalogue
from course.grading.handed_in import HandedInError, answer_text
from course.grading.history import History
from course.grading.runner import Submission
from course.lab import progress
from course.lab.json_store import JsonFile
from minillm import __version__
from minillm.core.errors import MinillmError
from minillm.observe.tables import text_table

FORMAT = "minillm-learner-1"


class ExportError(MinillmError):
    """A file is not what a learner exported."""


@dataclass(frozen=True)
class Rerun:
    """One handed-in answer, graded on the teacher's machine."""

    file: str
    points: float | None
    """None = it could not be read."""
    possible: float
    first_mistake: str
    """What the learner would read; empty = everything is right."""


class DoneExercise(BaseModel):
    """How far a learner is with one exercise that was begun."""

    id: str
    attempts: int
    hints: int
    points: float
    """The best attempt's points, less what hints cost."""
    possible: float


class Learner(BaseModel):
    """All that is kept of one learner."""

    format: str = FORMAT
    name: str
    exported: str
    """ISO 8601, UTC."""
    version: str
    """The version of minillm."""
    lessons: dict[str, progress.LessonRecord] = Field(default_factory=dict)
    """By number, such as "06"."""
    exercises: list[DoneExercise] = Field(default_factory=list)
    """Those that were begun, in the order of the lessons."""
    drills: list[attempts.DrillAttempt] = Field(default_factory=list)
    """Oldest first, with the answers' words."""
    events: list[dict[str, Any]] = Field(default_factory=list)
    """Each attempt at an exercise and each hint, oldest first: with the seed, to rerun an answer."""


def export(name: str) -> Learner:
    """What is kept on this machine, under a learner's name.

    Raises:
        OSError: minillm's home folder cannot be read.
    """
    history = History()
    return Learner(
        name=name,
        exported=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        lessons=JsonFile(progress.FILE.path, progress.Progress).read().lessons,
        exercises=[done for exercise in catalogue() if (done := _done(exercise, history))],
        drills=JsonFile(attempts.FILE.path, attempts.Attempts).read().done,
        events=list(history.events()),
    )


def _done(exercise: Exercise, history: History) -> DoneExercise | None:
    found = history.standing(exercise)
    if not found.attempts and not found.hints:
        return None
    return DoneExercise(
        id=exercise.id, attempts=found.attempts, hints=found.hints, points=found.best, possible=exercise.max_score
    )


def read(path: Path) -> Learner:
    """One exported file.

    Raises:
        ExportError: it cannot be read, or is something else.
    """
    try:
        learner = Learner.model_validate_json(path.read_bytes().removeprefix(BOM_UTF8))
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ExportError(f"{path} was not made by `export`: {where}: {first['msg']}") from None
    if learner.format != FORMAT:
        raise ExportError(f"{path} has format {learner.format!r}; this version reads {FORMAT!r}")
    return learner


def rerun(exercise: Exercise, paths: Sequence[Path], seed: int) -> Iterator[Rerun]:
    """Grade a class's files, or notebooks, each in a process of its own, all with the same questions."""
    for path in paths:
        try:
            submission = Submission.of_text(answer_text(path, exercise), str(path))
        except (HandedInError, OSError) as error:
            yield Rerun(str(path), None, exercise.max_score, str(error))
            continue
        result = graded(exercise, submission, seed, history=None)
        wrong = (f"{each.name}: {each.words}" for each in result.criteria if each.earned < each.possible)
        yield Rerun(str(path), result.score, result.max_score, next(wrong, ""))


def by_learner(learners: Sequence[Learner]) -> pd.DataFrame:
    """A row for each learner, most exercise points first. Shares are from 0 to 1; missing where nothing was done.

    Raises:
        ExportError: two exports have one name.
    """
    twice = [name for name, count in Counter(learner.name for learner in learners).items() if count > 1]
    if twice:
        raise ExportError(f"several exports are by {', '.join(sorted(twice))}: keep the last one of each learner")
    table = pd.DataFrame([_row(learner) for learner in learners]).set_index("learner")
    return table.sort_values(["exercise_points", "check_points"], ascending=False, kind="stable")


def _row(learner: Learner) -> dict[str, Any]:
    bets = [points for lesson in learner.lessons.values() for points in lesson.predictions.values()]
    scored = [points for points in bets if points is not None]
    checks = [check for lesson in learner.lessons.values() for check in lesson.checks.values()]
    drills = [attempt.points for attempt in learner.drills]
    return {
        "learner": learner.name,
        "lessons": len(learner.lessons),
        "predictions": len(bets),
        "predicted_right": _mean(scored),
        "check_points": sum(check.score for check in checks),
        "check_possible": sum(check.possible for check in checks),
        "exercises": sum(done.attempts > 0 for done in learner.exercises),
        "exercise_points": sum(done.points for done in learner.exercises),
        "attempts": sum(done.attempts for done in learner.exercises),
        "hints": sum(done.hints for done in learner.exercises),
        "drills": len(drills),
        "drill_points": _mean(drills),
        "last": max(_moments(learner), default=""),
    }


def _moments(learner: Learner) -> list[str]:
    lessons = [lesson.last for lesson in learner.lessons.values()]
    return [
        *lessons,
        *(drill.when for drill in learner.drills),
        *(str(event.get("at", "")) for event in learner.events),
    ]


def by_exercise(learners: Sequence[Learner]) -> pd.DataFrame:
    """A row for each exercise that any learner began, the worst first: what to talk about.

    `share` is the mean share of its points among those who tried it; `attempts` and `hints` are means as well.
    """
    rows = [
        {"exercise": done.id, "share": done.points / done.possible, "attempts": done.attempts, "hints": done.hints}
        for learner in learners
        for done in learner.exercises
        if done.attempts and done.possible
    ]
    table = pd.DataFrame(rows, columns=["exercise", "share", "attempts", "hints"])
    grouped = table.groupby("exercise").agg(
        tried_by=("share", "size"), share=("share", "mean"), attempts=("attempts", "mean"), hints=("hints", "mean")
    )
    return grouped.sort_values(["share", "tried_by"], kind="stable")


def as_text(learners: Sequence[Learner]) -> str:
    """Both tables, to read: as narrow as a terminal, shares in percent, days without their minutes."""
    heads = ("learner", "lessons", "bets", "right", "checks", "exercises", "points", "tries", "hints", "drills", "last")
    rows = [
        (
            str(name),
            str(row.lessons),
            str(row.predictions),
            _share(row.predicted_right),
            f"{row.check_points:g}/{row.check_possible:g}" if row.check_possible else "-",
            str(row.exercises),
            f"{row.exercise_points:.4g}",
            str(row.attempts),
            str(row.hints),
            str(row.drills),
            row["last"].partition("T")[0] or "-",
        )
        for name, row in by_learner(learners).iterrows()
    ]
    shown = [text_table(heads, rows)]
    if len(exercises := by_exercise(learners)):
        found = [
            (str(name), f"{row.tried_by:g}", _share(row.share), f"{row.attempts:.1f}", f"{row.hints:.1f}")
            for name, row in exercises.iterrows()
        ]
        shown.append(text_table(("exercise", "learners", "points", "tries each", "hints each"), found))
    return "\n\n".join(shown)


def _share(value: float | None) -> str:
    return "-" if pd.isna(value) else f"{value:.0%}"


def as_json(learners: Sequence[Learner]) -> str:
    """Both tables, for programs."""
    tables = {"learners": by_learner(learners), "exercises": by_exercise(learners)}
    rows = {name: json.loads(table.reset_index().to_json(orient="records")) for name, table in tables.items()}
    return json.dumps(rows, indent=2)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

"""What a learner has answered so far, on this machine only: one JSON file in minillm's home folder."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field

from course.lab.drills.drill import DIMENSIONS, LEVELS
from course.lab.drills.grade import Grade
from course.lab.drills.library import ALL
from course.lab.json_store import JsonStore, StoredModel

RECENT = 5
"""Attempts that tell where a learner stands."""


class Attempt(StoredModel):
    """One answer, and what became of it."""

    drill: str
    seed: int
    when: str
    """ISO 8601, UTC."""
    seconds: float | None = None
    """On the clock; None = without one."""
    milestones: dict[str, float] = Field(default_factory=dict)
    """Seconds after the start."""
    answer: str
    level: str
    points: float
    dimensions: dict[str, float]
    self_score: dict[str, str] = Field(default_factory=dict)


class Attempts(StoredModel):
    done: list[Attempt] = Field(default_factory=list)
    """Oldest first."""


FILE = JsonStore("drills.json", Attempts, anywhere=True)
"""Unlike other things that are kept, answers are also kept from a terminal: they were handed in."""


def keep(attempt: Attempt) -> None:
    """One more; never breaks what it is called from."""
    FILE.change(lambda content: content.done.append(attempt))


def attempt_of(
    graded: Grade,
    answer: str,
    self_score: Mapping[str, str] | None = None,
    seconds: float | None = None,
    milestones: Mapping[str, float] | None = None,
) -> Attempt:
    """What is kept of a graded answer."""
    return Attempt(
        drill=graded.drill.id,
        seed=graded.drill.seed,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        milestones=dict(milestones or {}),
        answer=answer,
        level=graded.level,
        points=round(graded.points, 3),
        dimensions={each.key: round(each.points, 3) for each in graded.dimensions},
        self_score=dict(self_score or {}),
    )


def standing(done: Sequence[Attempt]) -> dict[str, float]:
    """Mean points by dimension over the recent attempts."""
    recent = done[-RECENT:]
    scored = {key: [each.dimensions[key] for each in recent if key in each.dimensions] for key in DIMENSIONS}
    return {key: sum(points) / len(points) for key, points in scored.items() if points}


def trend(done: Sequence[Attempt]) -> dict[str, float]:
    """By dimension: the recent mean minus the mean of as many attempts before; empty without any before."""
    before = standing(done[:-RECENT])
    return {key: points - before[key] for key, points in standing(done).items() if key in before}


def bias(done: Sequence[Attempt]) -> float | None:
    """Levels by which the learner's own score lies above that of the rules, on average; None = never scored."""
    gaps = [
        LEVELS.index(level) / (len(LEVELS) - 1) - each.dimensions[key]
        for each in done
        for key, level in each.self_score.items()
        if key in each.dimensions
    ]
    return (len(LEVELS) - 1) * sum(gaps) / len(gaps) if gaps else None


def practise_next(done: Sequence[Attempt]) -> tuple[str, str]:
    """(dimension, drill): the weakest dimension of late, and the drill that was not tried yet, or went worst."""
    points = standing(done)
    weakest = min(points, key=points.get) if points else "diagnosis"
    best = {drill.id: max((a.points for a in done if a.drill == drill.id), default=-1.0) for drill in ALL}
    return weakest, min(best, key=best.get)

"""What a learner has answered so far, on this machine only: one JSON file in minillm's home folder."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from course.drills.drill import DIMENSIONS
from course.drills.library import ALL
from course.drills.sitting import Sitting
from course.lab.json_store import JsonStore, StoredModel

RECENT = 5
"""Attempts that tell where a learner stands."""


class DrillAttempt(StoredModel):
    """One answer, and what became of it. Those of older versions have other levels and points, and no headline."""

    drill: str
    seed: int
    when: str
    """ISO 8601, UTC."""
    seconds: float | None = None
    """On the clock; None = without one."""
    answer: str
    level: str = ""
    """Level of the verdict: mid, senior or staff; empty = below."""
    points: float
    """Where it stands, 0 to 1: commitments as far as the statements bear them out. Shown as no total."""
    headline: str = ""
    """Part by part, in words."""
    dimensions: dict[str, float] = Field(default_factory=dict)
    """By criterion, 0 to 1: the learner's own levels, where a quote stands behind them."""
    self_score: dict[str, str] = Field(default_factory=dict)
    weight: float = 1.0
    """What those levels count, by how well two samples were graded."""
    bias: float | None = None
    """Levels by which the samples were graded too high."""
    commit: dict[str, Any] = Field(default_factory=dict)
    samples: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The learner's grades of the two samples, by label."""
    quotes: dict[str, str] = Field(default_factory=dict)
    replies: dict[str, str] = Field(default_factory=dict)
    asked: list[str] = Field(default_factory=list)
    """Facts that were asked for, by key."""
    statements: dict[str, str] = Field(default_factory=dict)
    """Answers to those on the table, by place."""
    disputed: dict[str, str] = Field(default_factory=dict)
    """Reasons, by what is disputed."""
    ticks: dict[str, str] = Field(default_factory=dict)
    """The learner's words for what a strong answer says, by its number."""
    rewritten: str = ""
    """The paragraph that was written again."""


class Attempts(StoredModel):
    done: list[DrillAttempt] = Field(default_factory=list)
    """Oldest first."""


FILE = JsonStore("drills.json", Attempts, anywhere=True)
"""Unlike other things that are kept, answers are also kept from a terminal: they were handed in."""


def keep(attempt: DrillAttempt) -> None:
    """One more; never breaks what it is called from."""
    FILE.change(lambda content: content.done.append(attempt))


def attempt_of(sitting: Sitting) -> DrillAttempt:
    """What is kept of a graded answer."""
    calibration, own = sitting.calibration, sitting.own
    return DrillAttempt(
        drill=sitting.drill.id,
        seed=sitting.drill.seed,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=sitting.seconds,
        answer=sitting.text,
        level=sitting.standing.level,
        points=round(max(sitting.standing.value, 0), 3),
        headline=sitting.headline,
        dimensions={key: round(each.points, 3) for key, each in own.items() if each.counts},
        self_score={key: each.level for key, each in own.items()},
        weight=round(calibration.weight, 3),
        bias=round(calibration.bias, 2) if calibration.graded else None,
        commit=sitting.to_dict()["commit"],
        samples={label: dict(grades) for label, grades in sitting.samples.items()},
        quotes={key: each.quote for key, each in own.items() if each.quote},
        replies=dict(sitting.replies),
        asked=list(sitting.asked),
        statements={f"{place}": f"{each}" for place, each in sitting.answers.items()},
        disputed=dict(sitting.disputed),
        ticks={f"{number}": quote for number, quote in sitting.ticked.items()},
        rewritten=sitting.rewritten,
    )


def standing(done: Sequence[DrillAttempt]) -> dict[str, float]:
    """By criterion: the mean of the recent attempts' own grades, each as heavy as the learner was calibrated."""
    recent = [each for each in done[-RECENT:] if each.weight]
    weights = {key: sum(each.weight for each in recent if key in each.dimensions) for key in DIMENSIONS}
    return {
        key: sum(each.weight * each.dimensions.get(key, 0) for each in recent) / weight
        for key, weight in weights.items()
        if weight
    }


def practise_next(done: Sequence[DrillAttempt]) -> tuple[str, str]:
    """(criterion, drill): the weakest criterion of late, and the drill that was not tried yet, or went worst."""
    points = standing(done)
    weakest = min(points, key=points.get) if points else "diagnosis"
    best = {drill.id: max((a.points for a in done if a.drill == drill.id), default=-1.0) for drill in ALL}
    return weakest, min(best, key=best.get)

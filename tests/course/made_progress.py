"""What two places have kept of one learner, as exports: in each some results are better."""

import json
from typing import Any

from course.drills.attempts import DrillAttempt
from course.rounds.history import PlayedRound

DAY, BEFORE = "2026-11-27", "2026-11-26"


def attempt(seed: int, score: float) -> str:
    """A line of a history."""
    fields = {"seed": seed, "score": score, "max_score": 10.0, "hints": 0}
    event = {"at": f"{DAY}T10:0{seed}:00+00:00", "exercise": "percentiles", "event": "attempt", **fields}
    return json.dumps(event) + "\n"


def drill(seed: int) -> dict[str, Any]:
    when = f"{DAY}T11:0{seed}:00+00:00"
    return DrillAttempt(drill="p99-8s", seed=seed, when=when, answer="The queue.", points=1.0, level="mid").model_dump()


def design_round(seed: int) -> dict[str, Any]:
    return PlayedRound(round="weights", seed=seed, when=f"{DAY}T12:0{seed}:00+00:00", level="senior").model_dump()


def lesson(opened: int, last: int, predictions: dict[str, float | None], **checks: float) -> dict[str, Any]:
    answered = {question: {"score": score, "possible": 4.0} for question, score in checks.items()}
    moments = {"opened": f"{DAY}T0{opened}:00:00+00:00", "last": f"{DAY}T0{last}:00:00+00:00"}
    return {**moments, "predictions": predictions, "checks": answered}


def day(on_the_day: bool, **result: Any) -> dict[str, Any]:
    return {"on_the_day": on_the_day, **result}


HERE: dict[str, Any] = {
    "progress.json": {"lessons": {"06": lesson(2, 5, {"a": 1.0, "b": None, "c": None}, q1=3.0, q2=0.0)}},
    "exercises.jsonl": attempt(1, 4.0) + attempt(2, 10.0),
    "drills.json": {"done": [drill(1), drill(2)]},
    "rounds.json": {"done": [design_round(1)]},
    "incidents.json": {"names": ["seed 4, difficulty 1", "kv_pool"]},
    "daily.json": {
        "days": {
            DAY: day(True, score=60.0, questions=5, helped=12),
            BEFORE: day(False, score=90.0, questions=3, helped=None),
        }
    },
    "napkin.json": {"days": {DAY: day(True, right=False)}},
}
THERE: dict[str, Any] = {
    "progress.json": {
        "lessons": {"06": lesson(1, 4, {"a": 0.5, "b": 0.2, "c": None}, q1=1.0), "07": lesson(6, 6, {"d": 1.0})}
    },
    "exercises.jsonl": attempt(2, 10.0) + attempt(3, 1.0),
    "drills.json": {"done": [drill(2), drill(3)]},
    "rounds.json": {"done": [design_round(2)]},
    "incidents.json": {"names": ["kv_pool", "seed 9, difficulty 2"]},
    "daily.json": {"days": {DAY: day(False, score=95.0, questions=2, helped=8)}},
    "napkin.json": {"days": {DAY: day(False, right=True), BEFORE: day(True, right=True)}},
}
BOTH: dict[str, Any] = {
    "progress.json": {
        "lessons": {
            "06": lesson(1, 5, {"a": 1.0, "b": 0.2, "c": None}, q1=3.0, q2=0.0),
            "07": lesson(6, 6, {"d": 1.0}),
        }
    },
    "exercises.jsonl": attempt(1, 4.0) + attempt(2, 10.0) + attempt(3, 1.0),
    "drills.json": {"done": [drill(1), drill(2), drill(3)]},
    "rounds.json": {"done": [design_round(1), design_round(2)]},
    "incidents.json": {"names": ["seed 4, difficulty 1", "kv_pool", "seed 9, difficulty 2"]},
    "daily.json": {
        "days": {
            DAY: day(True, score=95.0, questions=2, helped=8),
            BEFORE: day(False, score=90.0, questions=3, helped=None),
        }
    },
    "napkin.json": {"days": {DAY: day(True, right=True), BEFORE: day(True, right=True)}},
}
"""Put together by hand: the better result of each, and what happened once."""


def unordered(held: dict[str, Any]) -> dict[str, Any]:
    """An export whose lists that aren't in order of time stand in one."""
    lines = held["exercises.jsonl"].splitlines()
    events = sorted((json.loads(line) for line in lines), key=lambda event: event["at"])
    return {**held, "exercises.jsonl": events, "incidents.json": {"names": sorted(held["incidents.json"]["names"])}}

"""One TOML file an exercise (facts, hints, texts), and beside it a module of the same name: its judges."""

import difflib
import tomllib
from pathlib import Path
from typing import Any

from course.grading.exercise import Exercise, Hint, Part

FOLDER = Path(__file__).parent


class UnknownExerciseError(LookupError):
    """There is no such exercise; the message names the nearest one."""


def ids() -> list[str]:
    """Every exercise's id, in alphabetical order."""
    return sorted(path.stem.replace("_", "-") for path in FOLDER.glob("*.toml"))


def find(exercise_id: str) -> Exercise:
    """The exercise of this id.

    Raises:
        UnknownExerciseError: there is none.
    """
    exercise_ids = ids()
    if exercise_id not in exercise_ids:
        near = difflib.get_close_matches(str(exercise_id).lower().replace("_", "-"), exercise_ids, n=1, cutoff=0.4)
        tip = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(exercise_ids)}"
        raise UnknownExerciseError(f"there is no exercise {exercise_id!r}: {tip}")
    facts = _facts(exercise_id)
    facts.pop("broken", None)  # for its judges
    if also := facts.pop("feedback_of", None):  # judges of two exercises share slips
        facts["feedback"] = {**_facts(also)["feedback"], **facts["feedback"]}
    parts = tuple(Part(**part) for part in facts.pop("parts"))
    hints = tuple(Hint(**hint) for hint in facts.pop("hints"))
    lists = {key: tuple(facts.pop(key, ())) for key in ("entry_points", "needs")}
    return Exercise(id=exercise_id, parts=parts, hints=hints, **lists, **facts)


def catalogue() -> list[Exercise]:
    """All exercises, in the order in which they are best done."""
    return sorted(map(find, ids()), key=lambda exercise: (exercise.lesson, exercise.difficulty, exercise.id))


def _facts(exercise_id: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{exercise_id.replace('-', '_')}.toml").read_text(encoding="utf-8"))

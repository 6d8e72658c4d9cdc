"""One module an exercise; each defines `EXERCISE`. They are found by name, so that one check imports one module."""

import difflib
import importlib
import pkgutil

from course.lab.grading.exercise import Exercise


class UnknownExerciseError(LookupError):
    """There is no such exercise; the message names the nearest one."""


def ids() -> list[str]:
    """Every exercise's id, in alphabetical order."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def find(exercise_id: str) -> Exercise:
    """The exercise of this id.

    Raises:
        UnknownExerciseError: there is none.
    """
    known = ids()
    if exercise_id not in known:
        near = difflib.get_close_matches(str(exercise_id).lower().replace("_", "-"), known, n=1, cutoff=0.4)
        tip = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
        raise UnknownExerciseError(f"there is no exercise {exercise_id!r}: {tip}")
    return importlib.import_module(f"{__name__}.{exercise_id.replace('-', '_')}").EXERCISE


def catalogue() -> list[Exercise]:
    """All exercises, in the order in which they are best done."""
    return sorted(map(find, ids()), key=lambda exercise: (exercise.lesson, exercise.difficulty, exercise.id))

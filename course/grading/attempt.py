"""One attempt at an exercise, from a notebook or a terminal: grade it, note it, say how to repeat it."""

import os
import secrets

from course.grading import Result
from course.grading.exercise import Exercise
from course.grading.history import History, cost_of_hints
from course.grading.runner import GradingWorker, Submission

STRICT = "MINILLM_STRICT"
"""With this environment variable at 1, as in builds and CI, checks are strict and nothing is kept for a learner."""


def is_strict() -> bool:
    return os.environ.get(STRICT) == "1"


def fresh_seed() -> int:
    return secrets.randbelow(1_000_000)


def graded(
    exercise: Exercise, submission: Submission, seed: int, history: History | None, seed_is: str = "seed="
) -> Result:
    """Grade in a process of its own, and note it in the history; None = note nothing. On a machine that lacks what the
    exercise needs, it is no attempt.

    Args:
        seed_is: how a seed is given where the answer came from.
    """
    if exercise.missing is not None:
        history = None
    with GradingWorker() as worker:
        outcome = worker.grade(exercise, submission, seed)
    result = Result(exercise.id, outcome.criteria)
    notes = [f"seed {seed}: repeat it with {seed_is}{seed}"]
    if history is not None:
        hints = history.hints_read(exercise)
        trouble = history.add_attempt(exercise, seed, result.score)
        if hints:
            notes.append(f"hints read: {hints}, which cost {cost_of_hints(exercise, hints):g} points in your summary")
        if trouble:
            notes.append(trouble)
    if outcome.printed:
        notes.append(f"your code printed:\n{outcome.printed.rstrip()}")
    return Result(exercise.id, outcome.criteria, tuple(notes))


def next_hint(exercise: Exercise, number: int | None, history: History | None) -> str:
    """The text of a hint; notes that it was read.

    Args:
        number: from 1; None = the next one, or the last when all were read.
    """
    total = len(exercise.hints)
    if total == 0:
        return f"{exercise.id} has no hints: the statement has all there is"
    if number is None:
        number = min((history.hints_read(exercise) if history else 0) + 1, total)
    if not isinstance(number, int) or not 1 <= number <= total:
        return f"{exercise.id} has {total} hints: choose a number from 1 to {total}"
    hint = exercise.hints[number - 1]
    cost = f"costs {hint.cost * exercise.max_score:g} of {exercise.max_score:g} points"
    trouble = history.add_hint(exercise, number) if history else None
    return f"Hint {number} of {total} ({cost}): {hint.text}" + (f"\n({trouble})" if trouble else "")

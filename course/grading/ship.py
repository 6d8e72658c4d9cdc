"""Packs functions and classes of a notebook for the process that checks them, with the source that tracebacks show."""

import base64
import inspect
import linecache
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from course.grading.exercise import Exercise
from course.grading.runner import Submission


class CannotShipError(ValueError):
    """What was handed over cannot be sent to another process; the message says why, for the learner."""


def pack(exercise: Exercise, answers: tuple[Any, ...]) -> Submission:
    """An answer as it was handed to check(...).

    Args:
        answers: functions and classes in the order of the entry points or under their names, or one module or
            dictionary that holds them.
    Raises:
        CannotShipError: something in it cannot be sent.
    """
    names = _named(exercise, answers)
    try:
        packed = cloudpickle.dumps(names)
    except Exception as error:
        raise CannotShipError(
            f"this could not be sent to the checker ({type(error).__name__}: {error}): does it use something of the "
            "notebook that is alive, such as an engine, a file or a lock? Pass it in as an argument instead"
        ) from error
    lines = {file: "".join(linecache.getlines(file)) for value in names.values() for file in _files(value)}
    return Submission({"pickle": base64.b64encode(packed).decode(), "lines": lines})


def _kernel(value: Any) -> Any:
    return getattr(value, "fn", None) if type(value).__module__.startswith("triton.") else None


def _named(exercise: Exercise, answers: tuple[Any, ...]) -> dict[str, Any]:
    wanted = exercise.entry_points
    if len(answers) == 1 and isinstance(answers[0], (dict, types.ModuleType)):
        found = answers[0] if isinstance(answers[0], dict) else vars(answers[0])
        return {name: found[name] for name in wanted if name in found}
    own_names = [getattr(answer, "__name__", None) for answer in answers]
    if len(answers) == len(wanted) and not any(name in wanted for name in own_names):
        return dict(zip(wanted, answers))
    return {name if name in wanted else wanted[0]: answer for name, answer in zip(own_names, answers)}


def _files(value: Any) -> Iterator[str]:
    """The files that a function, or the methods of a class, were written in; with those of the kernels it launches."""
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, types.FunctionType):
        used = (value.__globals__.get(name) for name in value.__code__.co_names)
        # triton.jit keeps the function it wraps as `fn`, and reads its source when the kernel is launched.
        yield from (each.fn.__code__.co_filename for each in used if isinstance(_kernel(each), types.FunctionType))
    members = list(vars(value).values()) if isinstance(value, type) else [value]
    for member in members:
        for each in (member, getattr(member, "__func__", None), getattr(member, "fget", None)):
            if isinstance(each, types.FunctionType):
                yield each.__code__.co_filename

"""What judges of numerical exercises share: read an array that an answer gave back, and say where it differs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Mistake
from course.lab.grading.tools import listed

Shape = tuple[int, ...]


def array(value: Any, what: str, shape: Shape) -> np.ndarray:
    """Anything that NumPy understands as numbers of this shape, as a float64 copy; it may hold NaN and infinities.

    Args:
        what: how the value is called in feedback, such as "dequantize(...)".
    """
    if value is None:
        raise Mistake(f"{what} gave back None: is there a `return` on every path?")
    if hasattr(value, "__next__"):
        value = listed(value, what)
    try:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        found = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = type(value).__name__
        raise Mistake(f"{what} should be an array of numbers; yours is {shown(value)} ({kind})") from None
    if found.shape != shape:
        raise Mistake(f"{what} should have shape {list(shape)}; yours has {list(found.shape)}")
    return found


def finite(value: Any, what: str, shape: Shape, tip: str = "") -> np.ndarray:
    """`array`, without NaN or infinities.

    Args:
        tip: what usually makes them, in this exercise.
    """
    found = array(value, what, shape)
    if not np.isfinite(found).all():
        odd = np.argwhere(~np.isfinite(found))[0]
        raise Mistake(f"{what} holds {found[tuple(odd)]} at {odd.tolist()}. {tip}".rstrip())
    return found


def alike(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """No entry differs by more than `tolerance` of the largest wanted one; NaN where NaN is wanted."""
    if found.shape != wanted.shape:
        return False
    finite_ones = wanted[np.isfinite(wanted)]
    scale = np.abs(finite_ones).max(initial=0) or 1.0
    return bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def slip_between(
    slips: Mapping[str, Callable[..., np.ndarray]],
    cases: Sequence[tuple[tuple[Any, ...], np.ndarray]],
    tolerance: float,
) -> str | None:
    """The usual mistake that gives exactly these arrays, all of them; None = something else.

    Args:
        cases: the arguments of each question, and what came back.
    """
    with np.errstate(all="ignore"):
        for words, mistaken in slips.items():
            if all(_agrees(mistaken, arguments, found, tolerance) for arguments, found in cases):
                return words
    return None


def _agrees(
    mistaken: Callable[..., np.ndarray], arguments: tuple[Any, ...], found: np.ndarray, tolerance: float
) -> bool:
    try:
        return alike(found, np.asarray(mistaken(*arguments), dtype=np.float64), tolerance)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False  # nobody can have got a result this way


def with_slip(told: str, slip: str | None) -> str:
    """Feedback, and behind it the usual mistake, if it is one."""
    return f"{told}. {slip[0].upper()}{slip[1:]}" if slip else told


def unchanged(before: Sequence[Any], after: Sequence[Any], names: Sequence[str]) -> None:
    """Raise Mistake if one of these arrays (or lists) is not as it was; NaN equals NaN."""
    for name, old, new in zip(names, before, after):
        if not np.array_equal(np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64), equal_nan=True):
            raise Mistake(f"it changes `{name}`, which it was given: work on a copy, the caller still needs it")

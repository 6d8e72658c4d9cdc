"""What judges have in common where answers are arrays: read, compare. Beside `tools`, which does without NumPy."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from course.grading.blame import MOST_ITEMS, Mistake
from course.grading.tools import given, listed, unlike


def array(value: Any, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """Anything that NumPy understands as numbers of this shape, as a float64 copy; it may hold NaN and infinities."""
    given(value, what)
    if hasattr(value, "__next__"):
        value = listed(value, what)
    try:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        found = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise unlike("an array of numbers", value, what) from None
    if found.shape != shape:
        raise Mistake(f"{what} should have shape {list(shape)}; yours has {list(found.shape)}")
    return found


def finite(value: Any, what: str, shape: tuple[int, ...], tip: str = "") -> np.ndarray:
    """`array`, without NaN or infinities.

    Args:
        tip: what usually makes them, in this exercise.
    """
    found = array(value, what, shape)
    if not is_finite(found):
        odd = np.argwhere(~np.isfinite(found))[0]
        raise Mistake(f"{what} holds {found[tuple(odd)]} at {odd.tolist()}. {tip}")
    return found


def is_finite(found: np.ndarray) -> bool:
    """No NaN and no infinity."""
    return bool(np.isfinite(found).all())


def unchanged(before: Sequence[Any], after: Sequence[Any], names: Sequence[str]) -> None:
    """Raise Mistake if one of these arrays (or lists) is not as it was; NaN equals NaN."""
    for name, old, new in zip(names, before, after):
        if not np.array_equal(np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64), equal_nan=True):
            raise Mistake(f"it changes `{name}`, which it was given: work on a copy, the caller still needs it")


def alike(found: np.ndarray, wanted: Any, tolerance: float) -> bool:
    """No entry differs by more than `tolerance` of the largest wanted one; NaN where NaN is wanted."""
    wanted = np.asarray(wanted, dtype=np.float64)
    if found.shape != wanted.shape:
        return False
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=0) or 1.0
    return bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def within(tolerance: float) -> Callable[[Any, Any], bool]:
    """`alike`, to compare with."""
    return partial(alike, tolerance=tolerance)


def worst_entry(found: Any, wanted: Any) -> tuple[str, Any, Any]:
    """Where a table of numbers is off the most, and the rows (of long ones, the numbers) there."""
    with np.errstate(all="ignore"):
        off = np.nan_to_num(np.abs(found - wanted), nan=np.inf)
    worst = np.unravel_index(off.argmax(), wanted.shape)[: wanted.ndim - (wanted.shape[-1] <= MOST_ITEMS)]
    return f" at {[int(index) for index in worst]}", found[worst], wanted[worst]

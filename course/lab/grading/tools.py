"""What judges have in common: read what an answer gave back, hold it to its inputs, and name a mistake by its result.

Whatever an answer returns goes through one of these before it is compared: they accept every sensible kind (lists,
tuples, arrays, generators; ints, floats, NumPy scalars) and turn the others into a Mistake.
"""

import copy
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Mistake

LONGEST = 100_000
"""Items of a generator that are read: an endless one ends here."""


def number(value: Any, what: str) -> float:
    """A finite number, as float.

    Args:
        what: how the value is called in feedback, such as "percentile(samples, 50)".
    """
    if value is None:
        raise Mistake(f"{what} gave back None: is there a `return` on every path?")
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise Mistake(f"{what} should be a number; yours is {shown(value)} ({type(value).__name__})") from None
    if not math.isfinite(found):
        raise Mistake(f"{what} should be a finite number; yours is {found}")
    return found


def whole(value: Any, what: str) -> int:
    """An integer; a float that is whole counts."""
    found = number(value, what)
    if found != int(found):
        raise Mistake(f"{what} should be a whole number; yours is {shown(value)}")
    return int(value) if isinstance(value, numbers.Integral) else int(found)


def listed(value: Any, what: str, length: int | None = None) -> list[Any]:
    """The items of a list, a tuple, an array, a generator.

    Args:
        length: how many there should be; None = any number.
    """
    if value is None:
        raise Mistake(f"{what} gave back None: is there a `return` on every path?")
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise Mistake(f"{what} should be a list; yours is {shown(value)} ({type(value).__name__})")
    try:
        found = list(itertools.islice(iter(value), LONGEST + 1))
    except TypeError:  # an array of no dimension
        raise Mistake(f"{what} should be a list; yours is {shown(value)} ({type(value).__name__})") from None
    if len(found) > LONGEST:
        raise Mistake(f"{what} never ends, or has more than {LONGEST} items")
    if length is not None and len(found) != length:
        raise Mistake(f"{what} should have {length} items; yours has {len(found)}: {shown(found)}")
    return found


def table(value: Any, what: str) -> dict[Any, Any]:
    """A dictionary, or pairs that make one."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = listed(value, what)
    try:
        found = dict(pairs)
    except (TypeError, ValueError):
        raise Mistake(f"{what} should be a dictionary; yours is {shown(value)}") from None
    if len(found) != len(pairs):
        raise Mistake(f"{what} names something twice: {shown(pairs)}")
    return found


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result for copies of the arguments: what it does to them cannot spoil the next question."""
    return function(*copy.deepcopy(arguments))


def left_alone(function: Callable[..., Any], *arguments: Any) -> None:
    """Raise Mistake if the function changes what it is given. Arguments are compared by repr: use plain data."""
    given = copy.deepcopy(arguments)
    result = function(*given)
    if hasattr(result, "__next__"):
        listed(result, "the result")  # a generator does nothing before it is read
    for before, after in zip(arguments, given):
        if repr(before) != repr(after):
            raise Mistake(f"it changes what it is given: {shown(before)} became {shown(after)}. Work on a copy")


def close(found: float, wanted: float, relative: float = 1e-6) -> bool:
    """Equal but for rounding."""
    return math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-9)


def same(found: Any, wanted: Any) -> bool:
    """`close` for numbers, and for lists, tuples and dictionaries of them; None equals None only."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and found.keys() == wanted.keys() and all(
            same(found[key], wanted[key]) for key in wanted
        )  # fmt: skip
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(wanted) and all(map(same, found, wanted))
    if wanted is None or found is None or isinstance(wanted, str):
        return found is wanted or (isinstance(wanted, str) and found == wanted)
    return close(found, wanted)


Slips = Mapping[str, Callable[..., Any]]
"""The usual mistakes: feedback, and what somebody who makes it would give back for the same arguments."""


def slip_of(slips: Slips, cases: Sequence[tuple[tuple[Any, ...], Any]]) -> str | None:
    """The usual mistake that explains all cases, right ones among them. None = something else.

    Args:
        cases: the arguments of each question, and what the answer gave back. Take enough to tell mistakes apart.
    """
    for words, mistaken in slips.items():
        if all(_agrees(mistaken, arguments, found) for arguments, found in cases):
            return words
    return None


def _agrees(mistaken: Callable[..., Any], arguments: tuple[Any, ...], found: Any) -> bool:
    try:
        return same(found, mistaken(*copy.deepcopy(arguments)))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False  # nobody can have got a result this way


def compare(
    what: str,
    cases: Sequence[tuple[tuple[Any, ...], Any]],
    right: Callable[..., Any],
    slips: Slips,
    describe: Callable[..., str] | None = None,
) -> None:
    """Raise Mistake unless every case agrees with `right`; the feedback shows the first that differs, and the slip.

    Args:
        what: the function's name.
        cases: arguments and what came back (already read by `number`, `listed`, ...).
        describe: arguments -> how the call is shown; None = their reprs.
    """
    for arguments, found in cases:
        wanted = right(*copy.deepcopy(arguments))
        if not same(found, wanted):
            asked = describe(*arguments) if describe else f"{what}({', '.join(map(shown, arguments))})"
            slip = slip_of(slips, cases)
            told = f"{asked} gave {shown(found)}; expected {shown(wanted)}"
            raise Mistake(f"{told}. {slip[0].upper()}{slip[1:]}" if slip else told)

"""What judges have in common: ask an answer, read what it gave back, compare, and name a mistake by its result.

Whatever an answer returns goes through a reader before it is compared: readers accept every sensible kind (lists,
tuples, arrays, generators; ints, floats, NumPy scalars) and turn the others into a Mistake.
"""

import copy
import importlib
import itertools
import math
import numbers
import random
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from course.grading.blame import Mistake, shown
from course.grading.remote import Answer
from course.grading.wire import LONGEST

Arguments = tuple[Any, ...]
Cases = Sequence[tuple[Arguments, Any]]
"""The arguments of each question, and what the answer gave back."""
Acts = Sequence[tuple[str, Sequence[Any] | None]]
"""A history of one object: methods, and the arguments that they are called with; None = an attribute that is read."""
Slips = Mapping[str, Callable[..., Any]]
"""The usual mistakes: the feedback's name, and what an answer with this mistake gives back for the same arguments."""


def expect(condition: Any, feedback: str, share: float = 0.0, **fields: Any) -> None:
    """Raise Mistake(feedback, share, ...) unless the condition holds."""
    if not condition:
        raise Mistake(feedback, share, **fields)


def number(value: Any, what: str) -> float:
    """A finite number, as float.

    Args:
        what: how the value is called in feedback, such as "percentile(samples, 50)".
    """
    given(value, what)
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise unlike("a number", value, what) from None
    if not math.isfinite(found):
        raise Mistake(f"{what} should be a finite number; yours is {found}")
    return found


def whole(value: Any, what: str) -> int:
    """An integer; a float that is whole counts."""
    found = number(value, what)
    if found != int(found):
        raise Mistake(f"{what} should be a whole number; yours is {shown(value)}")
    return int(value) if isinstance(value, numbers.Integral) else int(found)


def truth(value: Any, what: str) -> bool:
    """True or False, or 1 or 0."""
    if number(value, what) not in (0, 1):
        raise unlike("True or False", value, what)
    return bool(value)


def maybe(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """A reader that lets None through."""
    return lambda value, what: None if value is None else read(value, what)


def listed(value: Any, what: str, length: int | None = None) -> list[Any]:
    """The items of a list, a tuple, an array, a generator.

    Args:
        length: how many there should be; None = any number.
    """
    given(value, what)
    try:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        found = list(itertools.islice(iter(value), LONGEST + 1))
    except TypeError:
        raise unlike("a list", value, what) from None
    if len(found) > LONGEST:
        raise Mistake(f"{what} never ends, or has more than {LONGEST} items")
    if length is not None and len(found) != length:
        raise Mistake(f"{what} should have {length} items; yours has {len(found)}: {shown(found)}")
    return found


def each(read: Callable[[Any, str], Any]) -> Callable[[Any, str], list[Any]]:
    """A reader of lists, whose items another reader reads."""
    return lambda value, what: [read(item, f"an item of {what}") for item in listed(value, what)]


def table(value: Any, what: str) -> dict[Any, Any]:
    """A dictionary, or pairs that make one."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = listed(value, what)
    try:
        found = dict(pairs)
    except (TypeError, ValueError):
        raise unlike("a dictionary", value, what) from None
    if len(found) != len(pairs):
        raise Mistake(f"{what} names something twice: {shown(pairs)}")
    return found


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise unlike("a string", value, what)
    return value


def given(value: Any, what: str) -> None:
    """Raise Mistake where nothing was given back."""
    if value is None:
        raise Mistake(f"{what} gave back None: is there a `return` on every path?")


def unlike(kind: str, value: Any, what: str) -> Mistake:
    """A value is of another kind than was asked for."""
    return Mistake(f"{what} should be {kind}; yours is {shown(value)} ({type(value).__name__})")


def refused(
    error: type[Exception],
    about: str,
    why: str,
    act: Callable[[], Any],
    share: float = 0.3,
    instead: type[Exception] = Exception,
) -> None:
    """Raise Mistake unless `act` raises this error. A Mistake of `act` itself is raised as it is.

    Args:
        share: of the points, where it raises another one.
        instead: what may be raised for this share; anything else is left to be explained with its line.
    """
    try:
        result = act()
        if hasattr(result, "__next__"):
            # A generator does nothing before it is read, and may have no end.
            result = list(itertools.islice(result, LONGEST + 1))
    except (error, NotImplementedError, Mistake) as raised:
        if not isinstance(raised, error):
            raise
    except instead as other:
        raise Mistake(f"{about} raised {type(other).__name__}; expected {error.__name__}: {why}", share) from None
    else:
        raise Mistake(f"{about} gave {shown(result)}; expected {error.__name__}: {why}")


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result for copies of the arguments: what it does to them cannot spoil the next question."""
    return function(*copy.deepcopy(arguments))


def cut(data: bytes, rng: random.Random, longest: int, empty: float) -> list[bytes]:
    """Data cut anywhere, into 1 to `longest` bytes each; behind a share `empty` of them comes one of no bytes."""
    found, at = [], 0
    while at < len(data):
        size = rng.randint(1, longest)
        found += [data[at : at + size], *([b""] if rng.random() < empty else [])]
        at += size
    return found


def average(values: Sequence[float]) -> float | None:
    """None where there is nothing."""
    return statistics.mean(values) if values else None


def close(found: float, wanted: float, relative: float = 1e-6) -> bool:
    """Equal but for rounding."""
    return math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-9)


def same(found: Any, wanted: Any) -> bool:
    """`close` for numbers, equal for whole ones, and so for lists, tuples and dictionaries; None equals None only."""
    if isinstance(wanted, Mapping):
        keys = found.keys() if isinstance(found, Mapping) else ()
        return keys == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(wanted) and all(map(same, found, wanted))
    if wanted is None or found is None or isinstance(wanted, str):
        return found is wanted or (isinstance(wanted, str) and found == wanted)
    return found == wanted if isinstance(found, int) and isinstance(wanted, int) else close(found, wanted)


def broken(file: str, make: Callable[..., Any]) -> dict[str, Any]:
    """Slips that differ from the rule in a setting: `make(**settings)` of each line of `[broken]`, in the TOML file
    beside these judges."""
    facts = tomllib.loads(Path(file).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: make(**settings) for name, settings in facts["broken"].items()}


def slip_of(slips: Slips, cases: Cases, agree: Callable[[Any, Any], bool] = same) -> str | None:
    """The usual mistake that explains all cases, right ones among them; None = something else. Take enough cases to
    tell mistakes apart."""
    with _quiet():
        for name, mistaken in slips.items():
            if all(_explains(mistaken, arguments, found, agree) for arguments, found in cases):
                return name
    return None


def _quiet() -> AbstractContextManager[Any]:
    """NumPy says nothing of what it divides by zero; where it wasn't imported there's nothing to say."""
    numpy = sys.modules.get("numpy")
    return nullcontext() if numpy is None else numpy.errstate(all="ignore")


def _explains(mistaken: Callable, arguments: Arguments, found: Any, agree: Callable[[Any, Any], bool]) -> bool:
    try:
        return agree(found, call(mistaken, *arguments))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False  # no answer can have got a result this way


def compare(
    what: str,
    cases: Cases,
    right: Callable[..., Any],
    slips: Slips,
    *,
    describe: Callable[..., str] | None = None,
    agree: Callable[[Any, Any], bool] = same,
    otherwise: Callable[[Arguments, Any], str | None] | None = None,
    difference: Callable[[Arguments, Any, Any], str] | None = None,
    nan: str | None = None,
    share: float = 0.0,
) -> None:
    """Raise Mistake unless every case agrees with `right`; the feedback shows the first that differs, and the slip.

    Args:
        what: the function's name.
        cases: arguments and what came back (already read by `number`, `listed`, ...).
        describe: arguments -> how the call is shown; None = their reprs.
        otherwise: (arguments, found) -> what is wrong with a result that no slip explains.
        difference: (arguments, found, wanted) -> the feedback; None = "... gave ...; expected ...", of a table of
            numbers the place that is off the most.
        nan: what usually makes the arrays that are not finite; no slip explains these.
        share: of the points that stay earned.
    """
    for number, (arguments, found) in enumerate(cases):
        wanted = call(right, *arguments)
        if agree(found, wanted):
            continue
        if nan is not None and not all(_arrays().is_finite(each) for _, each in cases):
            slip: str | None = nan
        else:
            slip = slip_of(slips, [*cases[number:], *cases[:number]], agree)
            slip = slip or (otherwise(arguments, found) if otherwise else None)
        if difference is not None:
            raise Mistake(difference(arguments, found, wanted), share, slip=slip)
        asked = describe(*arguments) if describe else f"{what}({', '.join(map(shown, arguments))})"
        place, one, other = ("", found, wanted)
        if getattr(wanted, "ndim", 0) > 1:
            place, one, other = _arrays().worst_entry(found, wanted)
        raise Mistake(f"{asked} gave {shown(one)}{place}; expected {shown(other)}", share, slip=slip)


def _arrays() -> Any:
    """What compares arrays: imported for those only, since a browser has no NumPy."""
    return importlib.import_module("course.grading.arrays")


def ask(function: Callable[..., Any], questions: Iterable[Arguments], read: Callable[[Any, str], Any]) -> Cases:
    """What a function of the answer gives back, through a reader."""
    return [(question, read(function(*question), f"{_name(function)}(...)")) for question in questions]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the function")


def hold(
    function: Callable[..., Any],
    questions: Iterable[Arguments],
    right: Callable[..., Any],
    slips: Slips,
    read: Callable[[Any, str], Any] = number,
    describe: Callable[..., str] | None = None,
    **how: Any,
) -> Cases:
    """Ask all questions, and `compare`. Gives back the cases.

    Args:
        read: a reader.
        how: arguments of `compare`.
    """
    cases = ask(function, questions, read)
    compare(_name(function), cases, right, slips, describe=describe, **how)
    return cases


def play(thing: Any, acts: Acts) -> list[Any]:
    """What the acts of a history give on an oracle; `Answer.play` is the same of an answer's object."""
    results = []
    for name, arguments in acts:
        found = getattr(thing, name)
        results.append(found if arguments is None else found(*arguments))
    return results


def hold_acts(
    answer: Answer,
    make: Callable[[], Any],
    histories: Sequence[Acts],
    right: Callable[[], Any],
    slips: Mapping[str, Callable[[], Any]],
    reads: Mapping[str, Callable[[Any, str], Any]],
    otherwise: Callable[[Acts, int, list[Any], list[Any]], str | None] = lambda *_: None,
) -> None:
    """Play histories to an object of the answer and to an oracle, and `compare` what the acts gave.

    Args:
        make: makes an object of the answer.
        right: makes an oracle. `slips` make those with a usual mistake.
        reads: readers by the name of an act; what other acts give does not count.
        otherwise: (acts, number of the first that differs, results, wanted ones) -> what is wrong, if no slip explains
            it.
    """

    def told(acts: Acts, results: list[Any]) -> list[Any]:
        return [
            reads[act[0]](result, written([act])) if act[0] in reads else None for act, result in zip(acts, results)
        ]

    def oracle(make: Callable[[], Any], acts: Acts) -> list[Any]:
        return told(acts, play(make(), acts))

    def first(found: list[Any], wanted: list[Any]) -> int:
        return next(i for i, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1])

    def difference(arguments: tuple[Acts], found: list[Any], wanted: list[Any]) -> str:
        (acts,), i = arguments, first(found, wanted)
        words = f"after {written(acts[:i]) or 'nothing'}: {written(acts[i : i + 1])}"
        return f"{words} gave {shown(found[i])}; expected {shown(wanted[i])}"

    def kind(arguments: tuple[Acts], found: list[Any]) -> str | None:
        (acts,), wanted = arguments, oracle(right, *arguments)
        return otherwise(acts, first(found, wanted), found, wanted)

    cases = [((acts,), told(acts, answer.play(make(), acts))) for acts in histories]
    mistaken = {name: partial(oracle, make) for name, make in slips.items()}
    compare("acts", cases, partial(oracle, right), mistaken, otherwise=kind, difference=difference)


def written(acts: Acts) -> str:
    """A history as calls, the end of it if it is long. An attribute is only named where it is all there is."""
    said = [
        name if arguments is None else f"{name}({', '.join(map(shown, arguments))})"
        for name, arguments in acts
        if arguments is not None or len(acts) == 1
    ]
    return ", ".join(["...", *said[-8:]] if len(said) > 8 else said)

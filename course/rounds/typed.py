"""A number as a candidate types it into a field, in a unit that fits what is asked for."""

from course.drills import amounts
from course.drills.amounts import COUNT, RATIO, TOKENS, Amount, AmountError
from course.rounds.errors import CommitmentError

UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1, "ms": 1e-3, "µs": 1e-6, "minutes": 60, "hours": 3600, "days": 86400},
    "B": {"GB": 1e9, "MB": 1e6, "TB": 1e12, "kB": 1e3, "PB": 1e15},
    "B/s": {"GB/s": 1e9, "MB/s": 1e6, "TB/s": 1e12, "Gbit/s": 1.25e8, "Tbit/s": 1.25e11},
    "ratio": {"%": 0.01, "times": 1},
    "requests/s": {"requests/s": 1},
    "tokens/s": {"tokens/s": 1, "k tokens/s": 1e3, "M tokens/s": 1e6},
    "tokens": {"tokens": 1, "k tokens": 1e3, "M tokens": 1e6},
    "$": {"$": 1, "k$": 1e3, "M$": 1e6},
    "": {"": 1, "k": 1e3, "M": 1e6},
}
"""By the unit of an amount: what its field offers."""


IN_PERCENT = ("share", "loaded")
"""Words of a question whose answer may be 0.28 or 28: there it takes a %, or "times". Others ask how many times."""


def read_amount(typed: str, unit: str, asks: str = "") -> float:
    """The number in base units.

    Args:
        asks: the question; empty = the number was checked before.
    Raises:
        CommitmentError: it isn't one number with one of the units that fit, or it counts something else.
    """
    try:
        found = amounts.read_amount(typed)
    except AmountError:
        found = None
    is_times = unit == RATIO and not any(word in asks for word in IN_PERCENT)
    fitting = (None, COUNT, TOKENS, RATIO) if is_times else (None, COUNT) if unit == COUNT else (unit,)
    if found is None or found.unit not in fitting:
        wanted = ", ".join(each or "no unit" for each in UNITS[unit])
        raise CommitmentError(f"{typed!r} isn't one number with a unit that fits here: {wanted}")
    if asks and not found.counts(asks, unit):
        raise CommitmentError(f"{typed!r} counts something else: {asks}")
    return found.value


def is_near(value: float, amount: Amount) -> bool:
    """Within the amount's tolerance."""
    return abs(value - amount.value) <= amount.tolerance * abs(amount.value)

"""A number as a candidate types it into a field: digits and a unit of the field's own menu. No prose is read."""

import re

from course.drills.amounts import Amount
from course.rounds.errors import CommitmentError

UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1, "ms": 1e-3, "µs": 1e-6, "min": 60, "h": 3600, "days": 86400},
    "B": {"GB": 1e9, "MB": 1e6, "TB": 1e12, "kB": 1e3, "PB": 1e15},
    "B/s": {"GB/s": 1e9, "MB/s": 1e6, "TB/s": 1e12, "Gbit/s": 1.25e8, "Tbit/s": 1.25e11},
    "ratio": {"%": 0.01, "times": 1},
    "requests/s": {"requests/s": 1},
    "tokens/s": {"tokens/s": 1, "k tokens/s": 1e3, "M tokens/s": 1e6},
    "tokens": {"tokens": 1, "k tokens": 1e3, "M tokens": 1e6},
    "$": {"$": 1, "k$": 1e3, "M$": 1e6},
    "": {"": 1, "k": 1e3, "M": 1e6},
}
"""By the unit of an amount: what may be typed, in those units."""
_TYPED = re.compile(r"(?P<number>\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:e(?P<power>[+-]?\d{1,2}))?\s*(?P<unit>\D*)")


def read_amount(typed: str, unit: str) -> float:
    """The number in base units.

    Raises:
        CommitmentError: it isn't one number with one of the units that fit.
    """
    known = {each.lower(): scale for each, scale in UNITS[unit].items()}
    found = _TYPED.fullmatch(typed.strip().lower())
    if found is None or found["unit"].strip() not in known:
        wanted = ", ".join(each or "no unit" for each in UNITS[unit])
        raise CommitmentError(f"{typed!r} isn't a number with a unit that fits here: {wanted}")
    number = float(found["number"].replace(",", "")) * 10.0 ** int(found["power"] or 0)
    return number * known[found["unit"].strip()]


def is_near(value: float, amount: Amount) -> bool:
    """Within the amount's tolerance."""
    return abs(value - amount.value) <= amount.tolerance * abs(amount.value)

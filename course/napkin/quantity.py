"""Numbers with units: as a sum shows them, and as an answer has them."""

from collections.abc import Mapping

from course.drills.amounts import (
    BYTES,
    COUNT,
    MONEY,
    RATE,
    RATIO,
    SECONDS,
    TOKEN_RATE,
    TOKENS,
    Amount,
    AmountError,
    read_amount,
)
from course.drills.written import read_written
from course.lab.prices import dollars
from minillm.core.errors import MinillmError

_LARGE = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))

UNITS: dict[str, dict[str, float]] = {
    SECONDS: {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "minutes": 60.0, "hours": 3600.0},
    BYTES: {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    RATIO: {"%": 0.01, "times": 1.0},
    RATE: {"requests/s": 1.0},
    TOKENS: {"tokens": 1.0, "million tokens": 1e6},
    TOKEN_RATE: {"tokens/s": 1.0},
    MONEY: {"$": 1.0},
}
"""What an answer may be written in, by the unit of the quantity: each with its size."""
BARE = (COUNT, TOKENS, RATE, TOKEN_RATE, MONEY)
"""Units that may be left out."""


class NapkinError(MinillmError, ValueError):
    """An answer is no number, or in no unit that it could be in; or there's no such day."""


def with_unit(number: str, unit: str) -> str:
    """What is typed in a field for a number, with the unit from a menu beside it: one that was typed counts instead."""
    number = number.strip()
    found = read_written(number)
    has_unit = found is not None and found.behind != ""
    return number if has_unit or not number else f"{number} {unit}".strip()


class Quantity(Amount):
    """A number with its unit, as an engineer writes it: 131 kB, 3.35 TB/s, 70.6 billion weights, 2.4 million tokens."""

    def __format__(self, spec: str) -> str:
        if self.unit in (COUNT, TOKENS, TOKEN_RATE):
            for size, word in _LARGE:
                if self.value >= size:
                    return f"{self.value / size:.3g} {word}" + (f" {self.unit}" if self.unit and spec != "n" else "")
        if self.unit == MONEY and self.value < 1 and spec != "n":
            whole, _, cents = dollars(self.value).partition(".")
            return f"{whole}.{cents:0<2}"  # $0.50, and $0.135
        return super().__format__(spec)

    @property
    def units(self) -> Mapping[str, float]:
        """What an answer may be written in, each with its size; empty for what is counted."""
        return UNITS.get(self.unit, {})

    def read(self, typed: str, counted: str = "") -> float:
        """An answer in this quantity's own unit.

        Args:
            typed: such as "25 ms", "about 1.4 GiB", "at most 70%", "132k tokens". Where nobody would write another
                unit, it may be left out.
            counted: what is counted, where there's no unit: "replicas".
        Raises:
            NapkinError: it isn't one number above 0, it's in none of `units`, or it counts something else.
        """
        try:
            found = read_amount(typed)
        except AmountError:
            found = None
        if found is None or not found.value > 0:
            raise NapkinError(f"one number above 0, please, such as {self._example}; not {typed.strip()!r}")
        if counted and not found.counts(counted):
            raise NapkinError(f"this answer counts {counted}; {typed.strip()!r} counts something else")
        if found.unit == self.unit or (found.unit is None and self.unit in BARE):
            return found.value
        several = "one of " if len(self.units) > 1 else ""
        wanted = f"{several}{', '.join(self.units)}" if self.units else "a plain count"
        told = "has none" if found.unit is None else "has another"
        raise NapkinError(f"the unit of this answer is {wanted}; {typed.strip()!r} {told}")

    @property
    def _example(self) -> str:
        return f"12 {next(iter(self.units))}" if self.units else "12"

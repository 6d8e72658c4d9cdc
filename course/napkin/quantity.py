"""Numbers with units: as a sum shows them, and as an answer has them."""

import math
import re
from collections.abc import Mapping

from course.drills.amounts import BYTES, COUNT, MONEY, RATE, RATIO, SECONDS, TOKEN_RATE, TOKENS, Amount
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
_BINARY = {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
_ALSO = {
    "us": "µs",
    **dict.fromkeys(("sec", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "minute"), "minutes"),
    **dict.fromkeys(("h", "hour"), "hours"),
    **dict.fromkeys(("byte", "bytes"), "b"),
    **dict.fromkeys(("percent",), "%"),
    **dict.fromkeys(("x", "×", "fold", "-fold"), "times"),
    **dict.fromkeys(("req/s", "rps", "qps", "requests per second", "requests a second"), "requests/s"),
    **dict.fromkeys(("tok/s", "tokens per second", "tokens a second"), "tokens/s"),
    **dict.fromkeys(("token",), "tokens"),
    **dict.fromkeys(("dollar", "dollars", "usd"), "$"),
}
_MULTIPLES = {"k": 1e3, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_TYPED = re.compile(
    r"[~≈]?\s*(?P<dollar>\$)?\s*(?P<digits>(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+)(?:e[+-]?\d+)?)"
    rf"\s*(?:(?P<multiple>{'|'.join(_MULTIPLES)})\b)?\s*(?P<unit>[^\d,.]*)",
    re.IGNORECASE,
)


class NapkinError(MinillmError, ValueError):
    """An answer is no number, or in no unit that it could be in; or there's no such day."""


class Quantity(Amount):
    """A number with its unit, as an engineer writes it: 131 kB, 3.35 TB/s, 70.6 billion weights, 2.4 million tokens."""

    def __format__(self, spec: str) -> str:
        if self.unit in (COUNT, TOKENS, TOKEN_RATE):
            for size, word in _LARGE:
                if self.value >= size:
                    return f"{self.value / size:.3g} {word}" + (f" {self.unit}" if self.unit and spec != "n" else "")
        if self.unit == MONEY and self.value < 1 and spec != "n":
            return dollars(self.value)
        return super().__format__(spec)

    @property
    def units(self) -> Mapping[str, float]:
        """What an answer may be written in, each with its size; empty for what is counted."""
        return UNITS.get(self.unit, {})

    def read(self, typed: str) -> float:
        """An answer in this quantity's own unit.

        Args:
            typed: such as "25 ms", "1.4 GiB", "70%", "132k tokens". Where there's only one unit, it may be left out.
        Raises:
            NapkinError: it isn't a number above 0, or it's in none of `units`.
        """
        found = _TYPED.fullmatch(typed.strip())
        value = float(found["digits"].replace(",", "")) if found else math.nan
        if found is None or not 0 < value < math.inf:
            raise NapkinError(f"a number above 0, please, such as {self._example}; not {typed.strip()!r}")
        value *= _MULTIPLES[found["multiple"].lower()] if found["multiple"] else 1.0
        return value * self._size_of(found["dollar"] or found["unit"].strip(), typed.strip())

    @property
    def _example(self) -> str:
        return f"12 {next(iter(self.units))}" if self.units else "12"

    def _size_of(self, unit: str, typed: str) -> float:
        """Size of the unit that an answer was typed in."""
        named = _ALSO.get(unit.lower(), unit.lower())
        sizes = {name.lower(): size for name, size in self.units.items()} | (_BINARY if self.unit == BYTES else {})
        elsewhere = {name.lower() for units in UNITS.values() for name in units} | _BINARY.keys()
        if named in sizes:
            return sizes[named]
        if not unit and set(sizes.values()) <= {1.0, 1e6}:
            return 1.0
        if not sizes and named not in elsewhere:  # things that are counted have many names
            return 1.0
        wanted = f"one of {', '.join(self.units)}" if self.units else "a plain count"
        raise NapkinError(f"the unit of this answer is {wanted}; {typed!r} " + ("has none" if not unit else "isn't"))

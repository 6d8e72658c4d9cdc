"""Numbers with units: how a drill shows them, and how one that was committed to is read."""

import math
import re
from dataclasses import dataclass

from course.drills.written import names_in, read_written
from minillm.core.errors import MinillmError

TOLERANCE = 0.06
"""A number counts as right within this share: people round."""
SHARE_TOLERANCE = 0.025
"""A share of the whole also within this: 99% is not 95%, though within 6% of it."""
FEW = 200
"""Whole things up to this many are counted exactly: 28 replicas are not 29."""
APART = 0.5
"""A number that must not pass for the right one ends the tolerance at this share of the distance to it."""

SECONDS, TOKENS, RATE, TOKEN_RATE, BYTES, BYTE_RATE = "s", "tokens", "requests/s", "tokens/s", "B", "B/s"
FLOPS, RATIO, MONEY, COUNT = "FLOP/s", "ratio", "$", ""
PER_SECOND = "/s"
"""A rate that doesn't say of what."""

_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SHOWN = ((1e-4, 1e6, "µs"), (1.0, 1e3, "ms"), (7200.0, 1.0, "s"), (math.inf, 1 / 3600, "hours"))
"""Seconds below a limit: by what they are multiplied, and in which unit they are shown."""

LONGER = {"min": 60.0, "h": 3600.0, "day": 86400.0}
"""What a rate may be counted by, other than a second."""
UNITS: dict[str, tuple[str, float]] = {
    "µs": (SECONDS, 1e-6),
    "ms": (SECONDS, 1e-3),
    "s": (SECONDS, 1.0),
    "minutes": (SECONDS, 60.0),
    "hours": (SECONDS, 3600.0),
    "%": (RATIO, 0.01),
    "times": (RATIO, 1.0),
    "tokens": (TOKENS, 1.0),
    "tokens/s": (TOKEN_RATE, 1.0),
    "requests/s": (RATE, 1.0),
    "MB": (BYTES, 1e6),
    "GB": (BYTES, 1e9),
    "TB": (BYTES, 1e12),
    "GB/s": (BYTE_RATE, 1e9),
    "TB/s": (BYTE_RATE, 1e12),
    "TFLOP/s": (FLOPS, 1e12),
    "PFLOP/s": (FLOPS, 1e15),
    "$": (MONEY, 1.0),
    "(a count)": (COUNT, 1.0),
}
"""The menu of units: each with the unit it is a multiple of."""
REQUESTS, IN_FLIGHT, REPLICAS, CARDS = "requests", "in flight", "replicas", "cards"
_NOUNS: dict[str, tuple[str, ...]] = {
    REQUESTS: ("request", "req", "call", "query", "queries", "prompt"),
    IN_FLIGHT: ("user", "client", "session", "conversation", "stream", "sequence", "slot", "agent", "tenant"),
    REPLICAS: ("replica", "server", "instance", "machine", "node", "host", "box", "boxes"),
    CARDS: ("gpu", "card", "accelerator", "chip"),
    TOKENS: ("token", "tok"),
    "adapters": ("adapter", "lora"),
    "experts": ("expert",),
}
COUNTED = {f"{noun}{s}": kind for kind, nouns in _NOUNS.items() for noun in nouns for s in ("", "s")}
"""What people count, singular and plural, by its kind: 16 servers are 16 replicas, and aren't 16 requests."""
UNLISTED: dict[str, tuple[str, float]] = {
    "days": (SECONDS, 86400.0),
    "weeks": (SECONDS, 7 * 86400.0),
    "months": (SECONDS, 730 * 3600.0),
    "years": (SECONDS, 8760 * 3600.0),
    **{f"requests/{per}": (RATE, 1 / seconds) for per, seconds in LONGER.items()},
    **{f"tokens/{per}": (TOKEN_RATE, 1 / seconds) for per, seconds in LONGER.items()},
    **{f"/{per}": (PER_SECOND, 1 / seconds) for per, seconds in {"s": 1.0, **LONGER}.items()},
    **{noun: (COUNT, 1.0) for noun, kind in COUNTED.items() if kind != TOKENS},
    **{f"{prefix}B": (BYTES, size) for prefix, size in (("", 1.0), ("k", 1e3), ("P", 1e15))},
    "MB/s": (BYTE_RATE, 1e6),
    **{
        f"{prefix}iB{per}": (base, 2.0**power)
        for prefix, power in (("K", 10), ("M", 20), ("G", 30), ("T", 40))
        for base, per in ((BYTES, ""), (BYTE_RATE, "/s"))
    },
    **{
        f"{prefix}bit{per}": (base, size / 8)
        for prefix, size in (("M", 1e6), ("G", 1e9), ("T", 1e12))
        for base, per in ((BYTES, ""), (BYTE_RATE, "/s"))
    },
}
"""What is understood besides."""
KNOWN_UNITS = {name.lower(): unit for name, unit in (UNITS | UNLISTED).items()}
"""All of them, by their names in small letters."""


class AmountError(MinillmError):
    """What was written is no number with a unit of the menu."""


@dataclass(frozen=True)
class Amount:
    """A number that a drill gives, or that follows from those. `f"{x}"` has the unit, `f"{x:n}"` has not."""

    value: float
    unit: str = COUNT
    tolerance: float = TOLERANCE
    """Within this share of it a number is this one; less where a wrong one is near."""

    def __format__(self, spec: str) -> str:
        number, unit = self._scaled()
        digits = ",.0f" if number >= 100 or number == int(number) else ".3g" if number >= 1 else ".2g"
        written = format(number, digits)
        if unit == MONEY and number < 100:
            written = f"{number:.2f}"
        if spec == "n" or not unit:
            return written
        return f"${written}" if unit == MONEY else f"{written}%" if unit == "%" else f"{written} {unit}"

    def _scaled(self) -> tuple[float, str]:
        if self.unit == SECONDS:
            scale, unit = next(each for each in _SHOWN if self.value < each[0])[1:]
            return self.value * scale, unit
        if self.unit == RATIO:
            return (self.value * 100, "%") if self.value <= 1 else (self.value, "times")
        if self.unit in (BYTES, BYTE_RATE, FLOPS):
            prefix = max((p for p in _SIZES if _SIZES[p] <= self.value), key=_SIZES.get, default="")
            return self.value / _SIZES[prefix], (prefix.upper() if prefix != "k" else "k") + self.unit
        return self.value, self.unit

    @property
    def bare(self) -> float:
        """The number that is shown before its unit."""
        return self._scaled()[0]

    def off_by(self, value: float) -> float:
        """How far a value in the same unit is off, as a share of this one."""
        return abs(value - self.value) / abs(self.value) if self.value else math.inf

    def room(self, *others: "Amount") -> float:
        """The tolerance that is left where these must not pass for it: prompt numbers, and what wrong formulas give.

        Args:
            others: those in another unit, or equal to it, change nothing.
        """
        room = self.tolerance
        if self.unit == RATIO and self.value < 1:
            room = min(room, SHARE_TOLERANCE / self.value)
        if self.unit == COUNT and self.value == int(self.value) and self.value <= FEW:
            room = min(room, APART / self.value)
        near = [off for each in others if each.unit == self.unit and (off := self.off_by(each.value)) > 1e-9]
        return min([room, *(APART * off for off in near)])


@dataclass(frozen=True)
class Committed:
    """A number as it was handed in: in base units, if it has a unit."""

    value: float
    unit: str | None
    """None = it was left out."""
    counted: str = ""
    """The kind of thing that it says it counts, one of COUNTED's; empty = it doesn't say, or in words of its own."""

    def counts(self, asks: str, unit: str = COUNT) -> bool:
        """Whether it counts what is asked for, or doesn't say what it counts.

        Args:
            asks: the question, or what it names: "How many replicas, at noon?".
            unit: of what is asked for.
        """
        kinds = {COUNTED[word] for word in _words(asks) if word in COUNTED}
        if unit == COUNT and not kinds:
            return True  # sandboxes, versions: the question counts in words of its own
        if REQUESTS in kinds:
            kinds.add(IN_FLIGHT)  # each of those has one
        return not self.counted or self.counted in {unit, *kinds}

    def is_(self, asked: Amount, room: float) -> bool:
        """The same quantity, with its unit; what counts things, or says how many times, or is a share (0.4 of it) needs
        none. Of a rate, "/s" is enough.
        """
        units: set[str | None] = {asked.unit}
        if asked.unit == COUNT or (asked.unit == RATIO and asked.value >= 1):  # 40 is not 40%
            units |= {None, COUNT, RATIO}
        elif asked.unit == TOKENS:
            units |= {COUNT}
        elif asked.unit == RATIO:
            units |= {None}
        elif asked.unit in (RATE, TOKEN_RATE):
            units |= {PER_SECOND}
        return self.unit in units and asked.off_by(self.value) <= room

    def as_asked(self, asked: Amount, asks: str) -> "Committed":
        """The same, read in the unit that the question names: "4.2" where it asks for ms, "63 months" for years.

        Args:
            asked: what is asked for; a count, where its unit is only in the question.
            asks: the question.
        """
        base, size = unit_named(asks) or (None, 1.0)
        if self.unit is None and base == asked.unit:
            return Committed(self.value * size, base)
        if asked.unit == COUNT and base == self.unit:
            return Committed(self.value / size, COUNT)
        return self

    def lacks_its_unit(self, asked: Amount, room: float) -> bool:
        """The right figure, as it stands before its unit, and none behind it; or of a rate only what is counted ("16
        requests"), not by what.
        """
        shown = (self.value / asked.bare - 1) if asked.bare else math.inf
        lacking = [(None, "")]
        lacking += {RATE: [(COUNT, ""), (COUNT, REQUESTS)], TOKEN_RATE: [(TOKENS, TOKENS)]}.get(asked.unit, [])
        has_figure = abs(shown) <= room or asked.off_by(self.value) <= room
        return (self.unit, self.counted) in lacking and has_figure


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def thing_in(behind: str) -> str:
    """The kind of the first thing that the words behind a number name: "queued requests, on all replicas". Of several
    in a row the last: GPU servers are servers."""
    kind = ""
    for word in _words(behind):
        if kind and word not in COUNTED:
            break
        kind = COUNTED.get(word, kind)
    return kind


def unit_named(asks: str) -> tuple[str, float] | None:
    """The unit that a question names ("..., in ms?", "How many years ..."), and its size in base units."""
    told = (name for part in re.split(r"\b(?:in|many)\s+", asks)[1:] for name in names_in(part.replace("?", "")))
    return next((KNOWN_UNITS[name] for name in told if name in KNOWN_UNITS), None)


def read_amount(number: str, unit: str = "") -> Committed | None:
    """A committed number; None if there is none.

    Args:
        number: such as "5.4", "1,056", "132k"; may have its unit behind it ("about 80 ms", "$2.15"). Of a bound
            ("at most 87.6") and of a tolerance ("90 ms ± 10") the number itself is read.
        unit: one of UNITS, from a menu; empty = it stands behind the number, or was left out.
    Raises:
        AmountError: it isn't one number, the unit isn't one of the menu's, or the two name different units.
    """
    number, unit = number.strip(), unit.strip()
    if not number:
        return None
    if (found := read_written(number)) is None:
        raise AmountError(f"{number!r} isn't one number: write it as 5.4, 1,056 or 80 ms")
    if not math.isfinite(found.value):
        raise AmountError(f"{number!r} is too large a number")
    behind = next((KNOWN_UNITS[name] for name in names_in(found.behind) if name in KNOWN_UNITS), None)
    if unit and (chosen := KNOWN_UNITS.get(names_in(unit)[0])) is None:
        raise AmountError(f"there is no unit {unit!r}; there are: {', '.join(UNITS)}")
    if unit and behind not in (None, chosen):
        raise AmountError(f"{number!r} has a unit of its own, which isn't {unit}: which of the two is it?")
    base, counted = (chosen if unit else behind), thing_in(found.behind or unit)
    if base is None:
        return Committed(found.value, COUNT if found.behind else None, counted)  # "7 of them", "7 decode replicas"
    return Committed(found.value * base[1], base[0], counted if base[0] in (COUNT, TOKENS) else "")

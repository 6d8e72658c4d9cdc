"""Numbers with units, as people write them: '80 ms', '17-18 s', '132k tokens/s', '3.4 PFLOP/s', '18%', '$2.69'."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

TOLERANCE = 0.06
"""A number counts as right within this share: people round."""
SHARE_TOLERANCE = 0.025
"""A share of the whole also within this: 99% is not 95%, though within 6% of it."""

WIDEST = 1.7
"""Of a range: its upper end over its lower one. "30-50 ms" is one; with ends further apart they are two numbers."""

SECONDS, TOKENS, RATE, TOKEN_RATE, BYTES, BYTE_RATE = "s", "tokens", "requests/s", "tokens/s", "B", "B/s"
FLOPS, RATIO, MONEY, COUNT = "FLOP/s", "ratio", "$", ""

_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_EACH = r"\s*(?:/|per|a|each|every)\s*"
_UNITS: tuple[tuple[str, str, float], ...] = (
    (r"(?:µs|us|microseconds?)\b", SECONDS, 1e-6),
    (r"(?:ms|msec|milliseconds?)\b", SECONDS, 1e-3),
    (r"(?:s|secs?|seconds?)\b", SECONDS, 1.0),
    (r"(?:min|minutes?)\b", SECONDS, 60.0),
    (r"(?:h|hours?)\b", SECONDS, 3600.0),
    (rf"(?:qps|rps|req(?:uest)?s?{_EACH}s(?:ec(?:ond)?)?)\b", RATE, 1.0),
    (rf"tok(?:en)?s?{_EACH}s(?:ec(?:ond)?)?\b", TOKEN_RATE, 1.0),
    (r"(?:input |prompt |output )?tok(?:en)?s?\b", TOKENS, 1.0),
    (r"(?:%|percent\b|per cent\b)", RATIO, 0.01),
    (r"(?:x|×)(?![\w$])(?!\s*[\d$])", RATIO, 1.0),
    (r"(?:times|-?fold)\b", RATIO, 1.0),
    (r"(?:dollars?|usd)\b", MONEY, 1.0),
)
_SIZED = (
    (re.compile(rf"([kmgtp])i?b(?:ytes?)?{_EACH}s(?:ec(?:ond)?)?\b", re.I), BYTE_RATE),
    (re.compile(r"([kmgtp])i?b(?:ytes?)?\b"), BYTES),
    (re.compile(r"([kmgtp]|giga|tera|peta)?\s*flops?(?:/s| per second| a second)?\b", re.I), FLOPS),
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+"
_ONE = re.compile(rf"(?<![\w.,])(?P<money>\$\s*)?(?P<low>{_NUMBER})")
_RANGE = re.compile(rf"\s*(?:-|–|—|to)\s*(?P<high>{_NUMBER})")
_MULTIPLES = re.compile(r"\s?(?:(k|m|b)\b(?!\s*/)|(thousand|million|billion)\b)")
_MULTIPLE = {"k": 1e3, "m": 1e6, "b": 1e9, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_WORDS = {"half": 0.5, "a third": 1 / 3, "a quarter": 0.25, "twice": 2.0, "double": 2.0, "tenfold": 10.0, "triple": 3.0}
_WORDED = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_COUNTED = re.compile(rf"\b({'|'.join(_COUNTS)})( seconds)?\b")
_RESULT = re.compile(r"(?:[=≈]|\b(?:gives|makes))\s*(?:about |roughly |around |~\s*)?$")


@dataclass(frozen=True)
class Amount:
    """A number that a drill gives, or that follows from those. `f"{x}"` has the unit, `f"{x:n}"` has not."""

    value: float
    unit: str = COUNT
    tolerance: float = TOLERANCE
    """Within this share of it a number is this one; less where a wrong one is near."""

    def __format__(self, spec: str) -> str:
        number, unit = self._scaled()
        written = f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.2g}"
        if 10 <= number < 100 and number != int(number):
            written = f"{number:.3g}"
        elif 1 <= number < 10 and number != int(number):
            written = f"{number:.2f}".rstrip("0").rstrip(".")
        if unit == MONEY and number < 100:
            written = f"{number:.2f}"
        if spec == "n" or not unit:
            return written
        return f"${written}" if unit == MONEY else f"{written}%" if unit == "%" else f"{written} {unit}"

    def _scaled(self) -> tuple[float, str]:
        if self.unit == SECONDS:
            return (self.value * 1e3, "ms") if self.value < 1 else (self.value, "s")
        if self.unit == RATIO:
            return (self.value * 100, "%") if self.value <= 1 else (self.value, "times")
        if self.unit in (BYTES, BYTE_RATE, FLOPS):
            prefix = max((p for p in _SIZES if _SIZES[p] <= self.value), key=_SIZES.get, default="")
            return self.value / _SIZES[prefix], (prefix.upper() if prefix != "k" else "k") + self.unit
        return self.value, self.unit


@dataclass(frozen=True)
class Written:
    """A number found in a text; a range has two ends."""

    low: float
    high: float
    unit: str
    start: int
    end: int
    is_worded: bool = False
    """Written as a word: "six"."""
    is_result: bool = False
    """It stands behind an equals sign."""

    def is_about(self, amount: Amount, tolerance: float | None = None) -> bool:
        """The same quantity: a fitting unit or none at all, and near enough (by default, as near as the amount wants).

        A word without a unit counts things and nothing else: "six questions" are not 6 ms.
        """
        if not math.isfinite(self.high):
            return False
        tolerance = amount.tolerance if tolerance is None else tolerance
        if self.unit == amount.unit:
            scales: tuple[float, ...] = (1.0,)
        elif self.unit == COUNT and amount.unit != COUNT and self.is_worded:
            return False
        elif self.unit == COUNT or (amount.unit == COUNT and self.unit in (TOKENS, RATIO)):
            scales = {SECONDS: (1.0, 1e3), RATIO: (1.0, 100.0)}.get(amount.unit, (1.0,))
        elif {self.unit, amount.unit} == {TOKENS, TOKEN_RATE}:
            scales = (1.0,)
        else:
            return False
        low, high = self.low * (1 - tolerance), self.high * (1 + tolerance)
        if amount.unit == RATIO and amount.value < 1:
            most = SHARE_TOLERANCE * (100 if self.unit == COUNT and self.low > 1 else 1)
            low, high = max(low, self.low - most), min(high, self.high + most)
        return any(low <= amount.value * scale <= high for scale in scales)

    @property
    def may_lack_its_unit(self) -> bool:
        """A bare number that is no chance: the result of a sum, or one with digits behind the point."""
        return self.is_result or (not self.is_worded and self.low != int(self.low))


def amounts_in(text: str) -> list[Written]:
    """Every number of a text, in order, in base units (seconds, bytes, FLOP/s; 18% is 0.18)."""
    found: list[Written] = []
    place = 0
    while match := _ONE.search(text, place):
        found.append(_read(text, match))
        place = max(found[-1].end, match.end())
    words = [Written(_WORDS[m.group(1)], _WORDS[m.group(1)], RATIO, *m.span()) for m in _WORDED.finditer(text)]
    for match in _COUNTED.finditer(text):
        value = float(_COUNTS.index(match.group(1)) + 2)
        words.append(Written(value, value, SECONDS if match.group(2) else COUNT, *match.span(), is_worded=True))
    marked = [replace(each, is_result=_RESULT.search(text, 0, each.start) is not None) for each in found + words]
    return sorted(marked, key=lambda each: each.start)


def _read(text: str, match: re.Match[str]) -> Written:
    low = high = _float(match.group("low"))
    end = match.end()
    low_times, end = _multiple(text, end)
    factor, unit, after = _unit(text, end)
    second = _RANGE.match(text, after)
    high_times = low_times
    if second is not None:
        high, end = _float(second.group("high")), second.end()
        high_times, end = _multiple(text, end)
        if high_times != 1 and low_times == 1:
            low_times = high_times
        second_factor, second_unit, after = _unit(text, end)
        if unit == COUNT or second_unit != COUNT:
            low_factor = factor if unit != COUNT else second_factor
            factor, unit = second_factor, second_unit
        else:
            low_factor = factor
        ratio = high * high_times * factor / max(low * low_times * low_factor, 1e-300)
        if not 1 < ratio <= WIDEST:  # "from 20% to 80%", "1 - 0": two numbers
            return Written(low * low_times * low_factor, low * low_times * low_factor, unit, match.start(), match.end())
        return Written(low * low_times * low_factor, high * high_times * factor, unit, match.start(), after)
    if match.group("money"):
        unit = MONEY
    return Written(low * low_times * factor, high * low_times * factor, unit, match.start(), max(after, end))


def _float(digits: str) -> float:
    return float(digits.replace(",", ""))


def _multiple(text: str, place: int) -> tuple[float, int]:
    """`k` of 132k, and where the text goes on."""
    match = _MULTIPLES.match(text, place)
    return (_MULTIPLE[match.group(1) or match.group(2)], match.end()) if match else (1.0, place)


_UNIT_PATTERNS = [(re.compile(pattern), unit, factor) for pattern, unit, factor in _UNITS]
_GAP = re.compile(r"\+?[\s-]?\s?")


def _unit(text: str, place: int) -> tuple[float, str, int]:
    """Factor to base units, unit, and where the text goes on."""
    begin = _GAP.match(text, place).end()
    for pattern, unit in _SIZED:
        if match := pattern.match(text, begin):
            return _SIZES[(match.group(1) or "")[:1].lower()], unit, match.end()
    for known, unit, factor in _UNIT_PATTERNS:
        if match := known.match(text, begin):
            return factor, unit, match.end()
    return 1.0, COUNT, place


_TIMES = re.compile(r"\s*(?:[x×*·⋅∙]|times|multiplied by)\s*")
_OVER = re.compile(r"\s*(?:/|÷|divided by|over)\s*")
_SUMMAND = re.compile(r"(?:[-+−–]|\b(?:plus|minus))\s*\(?\s*$")
_NOUNS = r"(?:(?![x×]\s)[a-z-]+\s+){0,3}?"
_EQUALS = re.compile(
    r"[^\d=≈]{0,30}?(?:=|≈|~=|\bis (?:about|roughly)?|\bgives\b|\bmakes\b)\s*(?:about|roughly|~|≈)?\s*"
)


@dataclass(frozen=True)
class Sum:
    """A calculation that was written out, and what it really gives."""

    words: str
    claimed: float
    right: float
    operands: tuple[Written, ...]
    unit: str

    @property
    def holds(self) -> bool:
        """Within rounding; a factor of 1000 between units is forgiven where a unit was left out."""
        if not self.right or not self.claimed:
            return self.right == self.claimed
        steps = (0, 3, -3, 6, -6, 9, -9, 12, -12) if any(each.unit == COUNT for each in self.operands) else (0,)
        return any(abs(self.claimed / self.right / 10**step - 1) <= TOLERANCE for step in steps)


def sums_in(text: str, amounts: Sequence[Written]) -> Iterator[Sum]:
    """Calculations such as '80 ms x 180 = 14.4 s' or '38 GB / 600 MB = 64'.

    Products and quotients only: with a plus or minus before them, or a range in them, they are passed over.
    """
    place = 0
    while place < len(amounts):
        value, used = amounts[place].low, [amounts[place]]
        while place + len(used) < len(amounts):
            following = amounts[place + len(used)]
            between = text[used[-1].end : following.start]
            if _joins(_TIMES, between):
                value *= following.low
            elif _joins(_OVER, between) and following.low:
                value /= following.low
            else:
                break
            used.append(following)
        last = place + len(used)
        if len(used) > 1 and last < len(amounts):
            result = amounts[last]
            is_plain = not _SUMMAND.search(text, 0, used[0].start) and all(each.low == each.high for each in used)
            if is_plain and _EQUALS.fullmatch(text[used[-1].end : result.start]) and math.isfinite(value):
                yield Sum(text[used[0].start : result.end], result.low, value, tuple(used), result.unit)
        place += max(len(used) - 1, 1)


def _joins(operator: re.Pattern[str], between: str) -> bool:
    return re.fullmatch(rf"\s?{_NOUNS}{operator.pattern}{_NOUNS}", between) is not None

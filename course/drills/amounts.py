"""Numbers with units, as people write them: '80 ms', '17-18 s', '132k tokens/s', '3.4 PFLOP/s', '18%', '$2.69'."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

TOLERANCE = 0.06
"""A number counts as right within this share: people round."""
SHARE_TOLERANCE = 0.025
"""A share of the whole also within this: 99% is not 95%, though within 6% of it."""

WIDEST = 1.7
"""The upper end of a range over its lower one, at most. "30-50 ms" is one; ends further apart are two numbers."""

SECONDS, TOKENS, RATE, TOKEN_RATE, BYTES, BYTE_RATE = "s", "tokens", "requests/s", "tokens/s", "B", "B/s"
FLOPS, RATIO, MONEY, COUNT = "FLOP/s", "ratio", "$", ""

_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_EACH = r"\s*(?:/|per|a|each|every)\s*"
_UNITS: tuple[tuple[str, str, float], ...] = (
    (r"(?:µs|us|microseconds?)\b", SECONDS, 1e-6),
    (r"(?:ms|msec|milliseconds?)\b", SECONDS, 1e-3),
    (rf"(?:s|secs?|seconds?)(?: of (?:\w+ ){{0,2}}\w+)?{_EACH}s(?:ec(?:ond)?)?\b", RATIO, 1.0),
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
    (r"(?:b|bytes?)\b(?!\s*/)", BYTES, 1.0),
)
_SIZED = (
    (re.compile(rf"([kmgtp])i?b(?:ytes?)?{_EACH}s(?:ec(?:ond)?)?\b", re.I), BYTE_RATE),
    (re.compile(r"([kmgtp])i?b(?:ytes?)?\b"), BYTES),
    (re.compile(r"([kmgtp]|giga|tera|peta)?\s*flops?(?:/s| per second| a second)?\b", re.I), FLOPS),
)
_SHOWN = ((1e-4, 1e6, "µs"), (1.0, 1e3, "ms"), (7200.0, 1.0, "s"), (math.inf, 1 / 3600, "hours"))
"""Seconds below a limit: by what they are multiplied, and in which unit they are shown."""
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+"
_ONE = re.compile(rf"(?<![\w.,])(?P<money>\$\s*)?(?P<low>{_NUMBER})")
_RANGE = re.compile(rf"\s*(?:-|–|—|to)\s*(?P<high>{_NUMBER})")
_MULTIPLES = re.compile(r"(?:\s?([km])|(b))\b(?!\s*/)|\s?(thousand|million|billion)\b")
"""70b is seventy billion, 160 B are bytes."""
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
            shown = amount._scaled()[0] / amount.value  # in the unit that it is shown in: "about 880" for 880 GB
            scales = {SECONDS: (1.0, 1e3), RATIO: (1.0, 100.0)}.get(amount.unit, (1.0, shown))
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
    marked = [
        replace(each, is_result=_RESULT.search(text[max(each.start - 20, 0) : each.start]) is not None)
        for each in found + words
    ]
    return sorted(marked, key=lambda each: each.start)


def _read(text: str, match: re.Match[str]) -> Written:
    low, (times, end) = _float(match.group("low")), _multiple(text, match.end())
    factor, unit, after = _unit(text, end)
    unit = MONEY if match.group("money") else unit
    if (second := _RANGE.match(text, after)) is None:
        return Written(low * times * factor, low * times * factor, unit, match.start(), after)
    high_times, end = _multiple(text, second.end())
    high_factor, high_unit, after = _unit(text, end)
    if high_unit == COUNT:  # what one end lacks the other has
        high_factor, high_unit = factor, unit
    low *= (high_times if times == 1 else times) * (high_factor if unit == COUNT else factor)
    high = _float(second.group("high")) * high_times * high_factor
    if not 1 < high / max(low, 1e-300) <= WIDEST:  # "from 20% to 80%", "1 - 0": two numbers
        high, after = low, match.end()
    return Written(low, high, high_unit, match.start(), after)


def _float(digits: str) -> float:
    return float(digits.replace(",", ""))


def _multiple(text: str, place: int) -> tuple[float, int]:
    """`k` of 132k, and where the text goes on."""
    match = _MULTIPLES.match(text, place)
    return (_MULTIPLE[match.group(match.lastindex or 0)], match.end()) if match else (1.0, place)


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
_OVER = re.compile(r"\s*(?:/|÷|divided by|over|out of)\s*")
_OPERATOR = re.compile(
    r"(?:\S ?[-–]|[+−^/÷×*·]|(?<![a-z])x|\b(?:plus|minus|times|multiplied by|divided by|over))\s*\(?\s*$"
)
"""Before a calculation it says that this is only a part of one; a dash that begins a line says nothing."""
_NOUNS = r"(?:(?![x×]\s)[a-z-]+\s+){0,3}?"
_PLUS = re.compile(r"\s*(?:\+|plus)\s*")
_EQUALS = re.compile(
    r"(?:(?!\b(?:and|the|an?|plus|minus|less)\b)[^\d=≈+×÷*^.;:(]){0,30}?"
    r"(?:=|≈|~=|→|->|\bis\b|\bgives\b|\bmakes\b)\s*(?:about|roughly|~|≈)?\s*"
)
"""No sentence may end before it, and nothing else begin."""


@dataclass(frozen=True)
class Sum:
    """A calculation that was written out, and what it really gives."""

    words: str
    result: Written
    readings: tuple[float, ...]
    """What it gives: from left to right, and with all that follows a division below the line."""
    operands: tuple[Written, ...]

    @property
    def holds(self) -> bool:
        """Within rounding, in one reading. Forgiven: factors of 1000 or 100 where units lack, whole things rounded."""
        unit, units = self.result.unit, {each.unit for each in self.operands}
        steps: tuple[int, ...] = (0,)
        if COUNT in units and unit not in (COUNT, *units):
            steps = tuple(range(-15, 16, 3))
        if RATIO in (unit, *units) or unit == COUNT:
            steps += (2, -2)
        return any(self._is_about(right, steps) for right in self.readings)

    def _is_about(self, right: float, steps: Sequence[int]) -> bool:
        claimed = self.result.low
        if not right or not claimed:
            return right == claimed
        is_whole = self.result.unit in (COUNT, TOKENS) and claimed == int(claimed) and right > 1
        near = any(abs(claimed / right / 10**step - 1) <= TOLERANCE for step in steps)
        return near or (is_whole and abs(claimed - right) < 1)


_DIMENSIONS = {SECONDS: "s", RATE: "/s", TOKEN_RATE: "/s", BYTES: "B", BYTE_RATE: "B/s", FLOPS: "F", MONEY: "$"}


def _dimension(signs: Mapping[Written, int]) -> dict[str, int]:
    """Powers of seconds, bytes, FLOPs and dollars in a product; tokens and requests are plain counts."""
    total: dict[str, int] = {}
    for written, sign in signs.items():
        base, _, per = _DIMENSIONS.get(written.unit, "").partition("/")
        for name, power in ((base, sign), (per, -sign)):
            total[name] = total.get(name, 0) + power
    return {name: power for name, power in total.items() if name and power}


def sums_in(text: str, amounts: Sequence[Written]) -> Iterator[Sum]:
    """Calculations such as '80 ms x 180 = 14.4 s', '38 GB / 600 MB = 64' or '3.2 s + 14.4 s = 17.6 s'.

    Not mixed. Passed over: with a plus, a minus or a power before them, with a range in them, or if
    their units don't make the result's, so that something was left unsaid.
    """
    for operators, given in (({_TIMES: 1, _OVER: -1}, _products), ({_PLUS: 1}, _total)):
        place = 0
        while place < len(amounts):
            signs, last = {amounts[place]: 1}, place + 1
            for result in amounts[last:]:
                between = text[amounts[last - 1].end : result.start]
                if not (sign := next((operators[each] for each in operators if _joins(each, between)), 0)):
                    begin = amounts[place].start
                    is_plain = last > place + 1 and not _OPERATOR.search(text[max(begin - 16, 0) : begin])
                    if is_plain and _EQUALS.fullmatch(between) and (readings := given(signs, result)):
                        yield Sum(text[begin : result.end], result, readings, tuple(signs))
                    break
                signs[result], last = sign, last + 1
            place += max(len(signs) - 1, 1)


def _products(signs: Mapping[Written, int], result: Written) -> tuple[float, ...]:
    """No range among them."""
    is_plain = all(each.low == each.high for each in signs)
    return tuple(_product(each) for each in _readings(signs) if is_plain and _fits(each, result))


def _total(terms: Mapping[Written, int], result: Written) -> tuple[float, ...]:
    """All in the result's unit, or none in any."""
    total, most = (sum(getattr(each, end) for each in terms) for end in ("low", "high"))
    fits = {each.unit for each in terms} in ({COUNT}, {result.unit}) and total == most < math.inf
    return (total,) if fits else ()


def _readings(signs: Mapping[Written, int]) -> Iterator[Mapping[Written, int]]:
    yield signs
    below = list(signs.values()).index(-1) if -1 in signs.values() else len(signs)
    if any(sign == 1 for sign in list(signs.values())[below:]):
        yield {each: 1 if place < below else -1 for place, each in enumerate(signs)}


def _product(signs: Mapping[Written, int]) -> float:
    try:
        return math.prod(float(each.low) ** sign for each, sign in signs.items())
    except (ZeroDivisionError, OverflowError):
        return math.nan


def _fits(signs: Mapping[Written, int], result: Written) -> bool:
    """The units of a product make those of its result; where all are left out, any. FLOP and FLOP/s look alike."""
    left, right = _dimension(signs), _dimension({result: 1})
    if FLOPS in (result.unit, *(each.unit for each in signs)):
        left.pop("s", None), right.pop("s", None)
    return math.isfinite(_product(signs) + result.low) and (result.unit == COUNT or not left or left == right)


def _joins(operator: re.Pattern[str], between: str) -> bool:
    return len(between) < 60 and re.fullmatch(rf"\s?{_NOUNS}{operator.pattern}{_NOUNS}", between) is not None

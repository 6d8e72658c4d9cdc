"""A number as people write it: "about 2.2 GB", "at most 87.6", "90 ms ± 10", "2.4 x 10^6 tokens".

One reader for drills, rounds and napkin sums.
"""

import re
from dataclasses import dataclass

HEDGES = (
    *(
        "about",
        "around",
        "roughly",
        "approximately",
        "approx",
        "circa",
        "ca",
        "nearly",
        "almost",
        "just",
        "some",
        "say",
    ),
    *("at most", "at least", "up to", "no more than", "more than", "less than", "under", "over", "below", "above"),
    *("maximum", "minimum", "max", "min", "it's", "it is", "i'd say"),
)
"""Words before a number that don't change which number it is. A bound is read as the number that it names."""
HEDGE = r"^(?:(?:" + "|".join(HEDGES) + r")\b[.:,]?|[~≈<>≤≥=])\s*"
"""One of them; any case, and there may be several."""
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+\.?[0-9]*|\.[0-9]+)"
NUMBER = (
    rf"^([$]?)\s*({_DIGITS}(?:[eE][+-]?[0-9]+)?)(?:\s*[x×*]\s*10(?:\^|\*\*)([+-]?[0-9]+))?"
    r"\s*(?:(k|K|M|[Tt]housand|[Mm]illion|[Bb]illion|bn|[Tt]rillion)(?![A-Za-z/]))?"
    rf"\s*([^0-9±]*?)(?:(?:±|\+/?-|plus or minus|give or take)\s*{_DIGITS}\s*([^0-9]*))?$"
)
"""Dollar sign, digits, power of ten, multiple, what stands behind; and behind a tolerance, which isn't read."""
MULTIPLES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "bn": 1e9, "billion": 1e9, "trillion": 1e12}
PER = {
    rf"\s*(?:\b(?:per|an?|each)\s+|/\s*)(?:{names})\b": f"/{short}"
    for names, short in (("second|sec|s", "s"), ("minutes?|min", "min"), ("hour|hr|h", "h"), ("days?|d", "day"))
}
"""Ways to write what a rate is counted by."""
BITS, BYTES_PS = re.compile(r"\b([kMGT])b(?=ps\b|/s\b)"), re.compile(r"\b([kMGT])Bps\b")
"""A rate in bits and one in bytes, where only the b's case tells them apart: 400 Gb/s, 400 GB/s."""
ALSO = {
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), "µs"),
    **dict.fromkeys(("msec", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute"), "minutes"),
    **dict.fromkeys(("h", "hr", "hrs", "hour"), "hours"),
    **dict.fromkeys(("d", "day"), "days"),
    **{name: f"{name}s" for name in ("week", "month", "year")},
    **dict.fromkeys(("yr", "yrs"), "years"),
    **dict.fromkeys(("percent", "pct"), "%"),
    **dict.fromkeys(("req", "reqs", "request", "query", "queries", "call", "calls"), "requests"),
    **dict.fromkeys(("x", "×", "fold", "-fold"), "times"),
    **dict.fromkeys(("byte", "bytes"), "b"),
    **dict.fromkeys(("token", "tok", "toks"), "tokens"),
    **dict.fromkeys(("rps", "qps"), "requests/s"),
    **dict.fromkeys(("dollar", "dollars", "usd"), "$"),
    **{f"{size}bitps": f"{size}bit/s" for size in "kmgt"},
    **{f"{size}-byte{s}": f"{size}b" for size in "kmgt" for s in ("", "s")},
    **{f"{word}byte{s}": f"{word[0]}b" for word in ("kilo", "mega", "giga", "tera", "peta") for s in ("", "s")},
}
"""Other names of units, in small letters."""


@dataclass(frozen=True)
class WrittenNumber:
    """A number, and the words that stand behind it."""

    value: float
    behind: str
    """A unit and perhaps more; empty = nothing."""


def read_written(text: str) -> WrittenNumber | None:
    """The one number of a text; None if there is none, or more than one, as in "2 to 3"."""
    text, before = text.strip(), ""
    while text != before:
        text, before = re.sub(HEDGE, "", text, flags=re.IGNORECASE), text
    if (found := re.match(NUMBER, text)) is None:
        return None
    dollar, digits, power, multiple, behind, at_last = found.groups(default="")
    value = float(f"{digits.replace(',', '')}e{power}") if power and "e" not in digits.lower() else _plain(digits)
    return WrittenNumber(value * MULTIPLES.get(multiple.lower(), 1.0), dollar or behind.strip() or at_last.strip())


def _plain(digits: str) -> float:
    return float(digits.replace(",", ""))


def names_in(behind: str) -> list[str]:
    """What the words behind a number may name, in small letters, the longest first: "GB of weights" may be "gb". A rate
    comes before what it counts: "$ an hour" may be "$/h", or "$".
    """
    rate = behind
    for written, short in PER.items():
        rate = re.sub(written, short, rate, flags=re.IGNORECASE)
    rate = BYTES_PS.sub(r"\1B/s", BITS.sub(r"\1bit", rate))
    return [*_names(rate), *(_names(behind) if rate != behind else [])]


def _names(behind: str) -> list[str]:
    words = behind.lower().rstrip(" .!,;").split(" ")
    found = [" ".join(words[:count]).rstrip(",;").partition("/") for count in range(len(words), 0, -1)]
    return ["".join((ALSO.get(counted, counted), *per)) for counted, *per in found]

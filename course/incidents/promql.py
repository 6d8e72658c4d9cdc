"""As much of PromQL as docs/monitoring/alerts.yml uses: selectors, rate, avg_over_time, sum and max by labels,
histogram_quantile, arithmetic, comparisons and `and`.

One service is looked at, so the sum over all its series is one number, and the sum by `le` is a histogram: the count
up to each border.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SELECTOR = re.compile(r"(minillm:[\w:]+)(\{[^}]*\})?(?:\[(\w+)\])?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
TOKEN = re.compile(rf"\s*({SELECTOR.pattern}|\d+(?:\.\d+)?|\w+|[-+*/<>(),])")
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda left, right: left and right,
    "<": operator.lt,
    ">": operator.gt,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
PRECEDENCE = (("and",), ("<", ">"), ("+", "-"), ("*", "/"))
"""What binds last comes first."""
Labels = tuple[tuple[str, str], ...]
Vector = dict[Labels, float]
Histogram = dict[float, float]
"""The count up to each border."""


@dataclass(frozen=True)
class Range:
    """The series that a selector with a window found, and the window's ends."""

    start: float
    end: float
    series: Mapping[Labels, Any]


Find = Callable[[str], Mapping[Labels, Any] | float]
"""By its name: the series, or the value of a recorded expression."""


def evaluate(expression: str, find: Find, now: float) -> Any:
    """The value of an expression at a moment: a number, or whether a condition holds.

    Raises:
        ValueError: it is not of the kind above.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is NaN there, too
        return _Evaluation(expression, find, now).whole()


def duration(text: str) -> float:
    """`5m` in seconds."""
    return float(text[:-1]) * UNITS[text[-1]]


class _Evaluation:
    """Reads an expression from left to right, and computes what it has read (recursive descent)."""

    def __init__(self, expression: str, find: Find, now: float) -> None:
        self.tokens = [match[1] for match in TOKEN.finditer(expression)]
        if "".join(self.tokens) != "".join(expression.split()):
            raise ValueError(f"not of the PromQL that is known here: {expression}")
        self.find, self.now = find, now
        self.at = 0

    def whole(self) -> Any:
        value = self._binary()
        if self.at < len(self.tokens):
            raise ValueError(f"unexpected {self.tokens[self.at]!r}")
        return value

    def _binary(self, level: int = 0) -> Any:
        """Operands of one precedence and its operators between them, from left to right."""
        if level == len(PRECEDENCE):
            return self._operand()
        value = self._binary(level + 1)
        while self._next() in PRECEDENCE[level]:
            operate = OPERATORS[self._take()]
            value = operate(value, self._binary(level + 1))
        return value

    def _operand(self) -> Any:
        token = self._take()
        if token == "(":
            value = self._binary()
            self._take(")")
            return value
        if token in ("sum", "max"):
            return self._aggregated(token)
        if token in ("rate", "avg_over_time"):
            (over,) = self._arguments()
            return rate(over) if token == "rate" else avg_over_time(over)
        if token == "histogram_quantile":
            return histogram_quantile(*self._arguments())
        if selector := SELECTOR.fullmatch(token):
            return self._selected(*selector.groups())
        return np.float64(token)

    def _aggregated(self, how: str) -> np.float64 | Histogram:
        """`sum by (labels) (vector)`."""
        self._take("by")
        labels = self._list(self._take)
        (vector,) = self._arguments()
        if "le" in labels:
            return {float(dict(of)["le"]): value for of, value in vector.items()}
        return np.float64(sum(vector.values()) if how == "sum" else max(vector.values(), default=np.nan))

    def _selected(self, name: str, matchers: str | None, window: str | None) -> Any:
        found = self.find(name)
        if not isinstance(found, Mapping):
            return found
        series = {labels: each for labels, each in found.items() if matches(dict(labels), matchers or "")}
        return Range(self.now - duration(window), self.now, series) if window else series

    def _arguments(self) -> list[Any]:
        return self._list(self._binary)

    def _list(self, read: Callable[[], Any]) -> list[Any]:
        self._take("(")
        items = [read()]
        while self._next() == ",":
            self._take(",")
            items.append(read())
        self._take(")")
        return items

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str | None = None) -> str:
        token = self._next()
        if not token or token != (wanted or token):
            raise ValueError(f"expected {wanted or 'more'}, not {token or 'the end'}")
        self.at += 1
        return token


def matches(labels: dict[str, str], matchers: str) -> bool:
    """Whether a series has the labels that a selector wants."""
    tests: dict[str, Callable[[str, str], bool]] = {
        "=": operator.eq,
        "!=": operator.ne,
        "=~": lambda value, wanted: bool(re.fullmatch(wanted, value)),
        "!~": lambda value, wanted: not re.fullmatch(wanted, value),
    }
    return all(tests[how](labels.get(label, ""), wanted) for label, how, wanted in MATCHER.findall(matchers))


def rate(over: Range) -> Vector:
    """Increase per second of each counter."""
    return {at: each.increase(over.start, over.end) / (over.end - over.start) for at, each in over.series.items()}


def avg_over_time(over: Range) -> Vector:
    """Mean of each gauge's samples."""
    within = {at: [v for moment, v in each if over.start < moment <= over.end] for at, each in over.series.items()}
    return {at: sum(values) / len(values) for at, values in within.items() if values}


def histogram_quantile(q: float, counts: Histogram) -> float:
    """As Prometheus estimates it: linear within a bucket."""
    borders = sorted(counts)
    total = counts[borders[-1]]
    if not total:
        return np.nan
    place = next(i for i, border in enumerate(borders) if counts[border] >= q * total)
    if place == len(borders) - 1:
        return borders[-2]
    low, below = (borders[place - 1], counts[borders[place - 1]]) if place else (0.0, 0.0)
    return low + (borders[place] - low) * (q * total - below) / (counts[borders[place]] - below)

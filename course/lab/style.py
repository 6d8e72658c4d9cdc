"""One look for every picture: a colour and a pattern per phase, sizes, and how numbers are written.

Colours are Okabe and Ito's set for colour-blind readers; patterns can be switched on (svg.py). Labels and markers stand
beside them, so that colour is never the only signal.
"""

import math
import string
from collections.abc import Callable, Mapping
from typing import Any

from minillm.core.timeline import PHASES

PHASE_COLOURS = dict(zip(PHASES, ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7")))
PHASE_LABELS = dict(zip(PHASES, ("queue", "prefill", "first token", "decode", "stream")))
ALARM = "#D55E00"
"""Okabe-Ito vermilion, for what went wrong: preempted, refused, over a limit."""

COLOURS = ("#7A7DD0", "#A6763F", "#C2416B", "#2F9E9E", "#7A8B99", "#B8951E")
"""Colours of curves and other things to tell apart: none is a phase's, so that a colour means one thing."""
TINTS = ("#EAE8B6", "#BAC9F6", "#E9BFB8", "#B2F1FD", "#B7B484")
"""Tints of requests, in turn, where a picture shows whose something is. None is near a phase's colour; colour-blind
readers can tell them apart, too; and a number in TINT_INK can be read on all of them, in light and in dark."""
TINT_INK = "#1f2328"

WIDTH = 720
"""Width of a picture in its own units. It scales to the page; text is 12 units high."""

ROUNDS_TO_ONE = 0.9995
"""From here on, three digits are those of the next unit."""


def tint(number: int) -> str:
    """The colour of a request, by its number."""
    return TINTS[number % len(TINTS)]


def seconds(value: float | None) -> str:
    """A duration with three significant digits and the unit that suits it; None, or no number, is a dash."""
    if value is None or math.isnan(value):
        return "–"
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * scale >= ROUNDS_TO_ONE:
            return f"{with_minus(number(value * scale))} {unit}"
    return "0 s" if value == 0 else "< 1 µs"


def with_minus(written: str) -> str:
    """A number with a minus sign for the hyphen that Python writes in front of it."""
    return f"−{written[1:]}" if written.startswith("-") else written


def told_seconds(value: float | None) -> str:
    """A duration as a sentence tells it: two significant digits, since two runs on one machine differ by more than the
    third."""
    if not value or not math.isfinite(value):
        return seconds(value)
    rounded = float(f"{value:.1e}")
    digits = 1 - math.floor(math.log10(abs(rounded)))
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(rounded) * scale >= 1:
            places = max(digits - round(math.log10(scale)), 0)
            return with_minus(f"{rounded * scale:.{places}f}".removesuffix(".0")) + f" {unit}"
    return "< 1 µs"


def number(value: float) -> str:
    """For people: 1240, 12.4, 1.24, 0.12, 0.004. Three digits above 1, two decimals below (or one digit, where two
    decimals would make it nothing), never scientific notation; no number is a dash."""
    if math.isnan(value):
        return "–"
    size = abs(value)
    if round(size, 1) >= 100 or value == int(value):
        return f"{value:.0f}"
    if round(size, 2) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if round(size, 2) else f"{value:.{-math.floor(math.log10(size))}f}"


def size(count: float) -> str:
    """Bytes with three significant digits and the unit that suits them, powers of 1000."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= ROUNDS_TO_ONE * scale:
            return f"{number(count / scale)} {unit}"
    return f"{count:.0f} bytes"


def change(before: float | None, after: float | None) -> str:
    """The relative change: '−50%', '×12' when it grew tenfold or more, '' when there is nothing to compare."""
    if before is None or after is None or before <= 0:
        return ""
    ratio = after / before
    if ratio >= 10:
        return f"×{ratio:.0f}"
    percent = round(100 * (ratio - 1))
    return f"{percent:+d}%".replace("-", "−") if percent else "±0%"


class _Template(string.Formatter):
    formats: Mapping[str, Callable[[Any], str]] = {
        "seconds": told_seconds,
        "ms": lambda value: told_seconds((value or 0.0) / 1e3),
        "number": number,
    }

    def format_field(self, value: Any, format_spec: str) -> str:
        write = self.formats.get(format_spec)
        told = write(value) if write else super().format_field(value, format_spec)
        return with_minus(told) if isinstance(value, (int, float)) else told


def fill_in(template: str, /, **values: Any) -> str:
    """`str.format` with three more formats: `{wait:seconds}`, `{wait:ms}` for one in milliseconds, `{rate:number}`.
    Durations have two digits; tables and pictures have three (`seconds`)."""
    return _Template().format(template, **values)

"""One look for every picture: a colour and a pattern per phase, sizes, and how numbers are written.

Colours are Okabe and Ito's set for colour-blind readers. A pattern stands beside each colour, so that
colour is never the only signal.
"""

import math

from minillm.timeline import PHASES

PHASE_COLOURS = dict(zip(PHASES, ("#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7")))
PHASE_LABELS = dict(zip(PHASES, ("queue", "prefill", "first token", "decode", "stream")))
ALARM = "#D55E00"
"""Okabe-Ito vermilion, for what went wrong: preempted, refused, over a limit."""

WIDTH = 720
"""Width of a picture in its own units. It scales to the page; text is 12 units high."""


def seconds(value: float | None) -> str:
    """A duration with three significant digits and the unit that suits it; None, or no number, is a dash."""
    if value is None or math.isnan(value):
        return "–"
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * scale >= 1:
            return f"{number(value * scale)} {unit}"
    return "0 s" if value == 0 else "< 1 µs"


def number(value: float) -> str:
    """For people: 1240, 12.4, 1.24, 0.12. Three digits above 1, two decimals below, never scientific notation."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def change(before: float | None, after: float | None) -> str:
    """The relative change: '−50%', '×12' when it grew tenfold or more, '' when there is nothing to compare."""
    if before is None or after is None or before <= 0:
        return ""
    ratio = after / before
    if ratio >= 10:
        return f"×{ratio:.0f}"
    percent = round(100 * (ratio - 1))
    return f"{percent:+d}%".replace("-", "−") if percent else "±0%"

"""A request's five phases in a terminal: one bar in proportion, each phase in its colour, and what each took."""

from itertools import accumulate
from typing import TextIO

from rich.console import Console
from rich.text import Text

from minillm.core.timeline import PHASES, Timeline

COLOURS = dict(zip(PHASES, ("bright_black", "blue", "yellow", "green", "magenta")))
"""A terminal colour for each phase: of the 16 that each has, the nearest to the course's pictures."""
BAR = 60
"""Columns of the bar."""


def duration(seconds: float) -> str:
    """Three significant digits, in the unit that suits: 24.7 s, 41.2 ms, 310 µs."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if (value := seconds * scale) >= 1:
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return "0 ms"


def phase_bar(timeline: Timeline, width: int = BAR) -> Text:
    """One bar of `width` columns: a phase's share of them is its share of the time. Shorter ones than half a column
    don't show."""
    phases = timeline.phases()
    whole = sum(phases.values()) or 1.0
    ends = [round(width * end / whole) for end in accumulate(phases.values())]
    bar = Text()
    for name, start, end in zip(phases, [0, *ends], ends):
        bar.append("█" * (end - start), COLOURS[name])
    return bar


def phase_line(timeline: Timeline) -> Text:
    """`queue 0 ms | prefill 41 ms | ...`, then the number of tokens and their rate while decoding, and how many steps
    checked drafts."""
    parts = [Text(f"{name.replace('_', ' ')} {duration(s)}", COLOURS[name]) for name, s in timeline.phases().items()]
    rate = f", {1 / timeline.tpot:.0f} tok/s" if timeline.tpot else ""
    checked = f", {len(timeline.verifications)} verifications" if timeline.verifications else ""
    return Text(" | ").join([*parts, Text(f"{timeline.num_tokens} tokens{rate}{checked}")])


def phase_table(timeline: Timeline) -> Text:
    """A line for each phase, its bar in proportion to the longest."""
    phases = timeline.phases()
    longest = max(phases.values()) or 1.0
    return Text("\n").join(
        Text.assemble(f"{name.replace('_', ' '):12} {duration(s):>8}  ", ("█" * round(40 * s / longest), COLOURS[name]))
        for name, s in phases.items()
    )


def show(text: str | Text, screen: TextIO) -> None:
    """Print a text: in colour and broken between words on a terminal; plain, and line by line as it is, in a pipe."""
    Console(file=screen, highlight=False, soft_wrap=not screen.isatty()).print(text, markup=False)

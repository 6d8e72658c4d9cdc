"""Where does a mean request's time go? Its five phases end to end, this run above those it is compared with."""

from collections.abc import Mapping

from course.lab.run import Run
from course.lab.style import PHASE_LABELS, seconds
from course.lab.summary import SAME, Comparison
from course.lab.svg import INK, PAPER, SOFT, Picture, Scale, nice, phase_fill, rect, text
from minillm.core.timeline import PHASES

LEFT, RIGHT, WIDTH = 70, 56, 640
TALL, LOW = 26, 12
"""Heights of this run's bar, and of the others."""


def draw_phases(compared: Comparison, beside: Mapping[str, Run]) -> Picture:
    """One bar of five phases with their numbers.

    Args:
        beside: other runs of the same traffic, by what they are called: thin bars under it.
    """
    run = compared.run
    means = {name: other.mean_phases() for name, other in beside.items()}
    now = run.mean_phases()
    longest = max(sum(each.values()) for each in (now, *means.values())) or 1.0
    scale = Scale(0, nice(longest / 8) * -(-longest // nice(longest / 8)), LEFT, WIDTH - RIGHT)
    body = text(LEFT - 8, 18, "this run", size=13, text_anchor="end", font_weight="bold")
    body += _bar(now, scale, 0, TALL)
    y = TALL + 4.0
    for name, each in means.items():
        body += text(LEFT - 8, y + LOW - 2, name, size=11, fill=SOFT, text_anchor="end") + _bar(each, scale, y, LOW)
        y += LOW + 3
    was = compared.before.mean_phases() if compared.is_possible else {}
    body += "".join(_column(i, phase, now, was, compared, y + 14) for i, phase in enumerate(PHASES))
    told = ", ".join(f"{PHASE_LABELS[phase]} {seconds(value)}" for phase, value in now.items())
    return Picture(
        "Where does a request's time go? (mean)", body, y + (50 if was else 36), WIDTH, description=f"Mean: {told}."
    )


def _bar(means: Mapping[str, float], scale: Scale, y: float, height: float) -> str:
    """Phases left to right, then their sum."""
    body, edge = "", 0.0
    for phase, value in means.items():
        width = scale(edge + value) - scale(edge)
        body += rect(scale(edge), y, width, height, fill=phase_fill(phase), stroke=PAPER, stroke_width=0.6)
        edge += value
    size = 13 if height == TALL else 11
    ink = INK if height == TALL else SOFT
    return body + text(scale(edge) + 6, y + height / 2 + 4, seconds(edge) if edge else "–", size=size, fill=ink)


def _column(
    i: int, phase: str, now: Mapping[str, float], was: Mapping[str, float], compared: Comparison, y: float
) -> str:
    """A phase's name and numbers; a change that matters stands out."""
    total = sum(now.values())
    x = 4 + i * (WIDTH - 4) / len(PHASES)
    inferred = compared.run.remote is not None and phase in compared.run.remote.inferred
    label = PHASE_LABELS[phase] + (" (inferred)" if inferred else "")
    value = f"{seconds(now[phase])}  {now[phase] / total:.0%}" if total else "–"
    body = rect(x, y - 9, 11, 11, fill=phase_fill(phase), rx=2) + text(x + 16, y, label, size=12, fill=SOFT)
    body += text(x + 16, y + 16, value, size=13)
    if was:
        told = compared.told_of_phase(phase)
        words = ", ".join(filter(None, [f"was {seconds(was[phase])}", told]))
        body += text(x + 16, y + 31, words, size=11, fill=SOFT if told in ("", SAME) else INK)
    return body

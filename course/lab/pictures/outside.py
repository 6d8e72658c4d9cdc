"""A request on another server: the phases as spans, dashed and pale where their borders are inferred."""

from collections.abc import Sequence

from course.lab.snapshot import RequestView
from course.lab.style import PHASE_COLOURS
from course.lab.svg import INK, phase_fill, rect, short, tag
from minillm.core.timeline import PHASES


def draw_bar_from_outside(
    view: RequestView, borders: Sequence[float], inferred: frozenset[str], y: float, height: float
) -> str:
    """One request's bar.

    Args:
        borders: where its five phases begin and end, in picture units.
        inferred: the phases that were not seen.
    """
    body = ""
    for phase, start, end in zip(PHASES, borders, borders[1:]):
        if end <= start:
            continue
        top, tall = (y + height * 0.3, height * 0.4) if phase == "queue" else (y, height)
        if phase in inferred:
            body += rect(
                start,
                top,
                end - start,
                tall,
                fill=phase_fill(phase),
                fill_opacity=0.4,
                stroke=PHASE_COLOURS[phase],
                stroke_width=1,
                stroke_dasharray="3 2",
            )
        else:
            body += rect(start, top, max(end - start, 1), tall, fill=phase_fill(phase))
    return body + (first_token_flag(borders[3], y) if view.deliveries else "")


def first_token_flag(x: float, y: float) -> str:
    """Marks the moment of the first token above a bar."""
    return tag(
        "path",
        d=f"M{short(x - 4)} {short(y - 3)}h8l-4 6z",
        fill=PHASE_COLOURS["first_token"],
        stroke=INK,
        stroke_width=0.6,
    )

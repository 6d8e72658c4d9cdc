"""Pieces of time one after the other, against a limit on their sum."""

from collections.abc import Mapping, Sequence

from course.lab.style import ALARM, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, text, time_axis


def draw_cascade(
    title: str, words: str, pieces: Mapping[str, float], limit: float, axis: str, colours: Sequence[str]
) -> Picture:
    """Pieces in seconds, each beginning where the one above it ended, and a limit on their sum."""
    total, bottom = sum(pieces.values()), 12 + 30 * len(pieces)
    scale = Scale(0, 1.15 * max(total, limit), 110, WIDTH - 70)
    body, start = time_axis(scale, 6, bottom, axis), 0.0
    for i, (name, value) in enumerate(pieces.items()):
        y = 14 + 30 * i
        body += text(102, y + 15, name, text_anchor="end")
        body += rect(scale(start), y, max(scale(value) - scale(0), 1.0), 20, fill=colours[i % len(colours)])
        body += text(scale(start + value) + 5, y + 15, seconds(value), size=11, fill=SOFT)
        start += value
    x = scale(limit)
    body += line(x, 6, x, bottom, stroke=ALARM if total > limit else INK, stroke_dasharray="5 3")
    return Picture(title, body, bottom + 38, description=words)

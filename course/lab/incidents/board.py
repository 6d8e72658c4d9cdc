"""Draws a panel: curves between two axes, with a limit where there is one.

The second curve is dashed: where two lie on each other, both are seen.
"""

from course.lab.incidents.panel import Panel
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture

HEIGHT = 200


def draw_panel(panel: Panel, title: str) -> Picture:
    """The panel as a picture."""
    curves = [
        Curve(line.name, list(line.xs), list(line.ys), "dashes" if place == 1 and line.style == "line" else line.style)
        for place, line in enumerate(panel.lines)
    ]
    marks = [] if panel.limit is None else [Mark(panel.limit_name, y=panel.limit)]
    return draw_chart(title, curves, Axis(panel.x), Axis(panel.y, low=0, high=panel.high), marks, height=HEIGHT)

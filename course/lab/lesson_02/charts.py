"""The wait against the load."""

from collections.abc import Mapping, Sequence

from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import number
from course.lab.svg import Picture


def draw_many_slots(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Picture:
    """Mean wait against load, a curve for each number of slots."""
    drawn = [Curve(f"{n} slots", [100 * x for x, _ in points], [y for _, y in points]) for n, points in curves.items()]
    found = "; ".join(
        f"{n} slots: " + ", ".join(f"{number(y)} s at {x:.0%}" for x, y in points) for n, points in curves.items()
    )
    x, y = Axis("load, % of the capacity of so many slots", high=110), Axis("mean wait, seconds", low=0)
    title = "Do more slots straighten the curve?"
    return draw_chart(title, drawn, x, y, [Mark("capacity", x=100)], description=f"{found}.")


def draw_overload(waited: Mapping[str, Sequence[tuple[float, float]]]) -> Picture:
    """The wait of each request against the moment it came, a curve for each load."""
    drawn = [Curve(f"load {name}", *zip(*points)) for name, points in waited.items()]
    found = "; ".join(f"load {name}: {number(points[-1][1])} s at the end" for name, points in waited.items())
    x, y = Axis("arrived after, seconds"), Axis("mean wait of 20 arrivals, seconds", low=0)
    return draw_chart("Does the wait settle?", drawn, x, y, description=f"{found}.")

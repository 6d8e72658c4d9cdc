"""The wait against the load, and against time."""

from collections.abc import Mapping, Sequence

from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture


def draw_many_slots(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Picture:
    """Mean wait against load, a curve for each number of slots."""
    drawn = [Curve(f"{n} slots", [100 * x for x, _ in points], [y for _, y in points]) for n, points in curves.items()]
    x, y = Axis("load, % of the capacity of so many slots", high=110), Axis("mean wait, seconds", low=0)
    return draw_chart("Do more slots straighten the curve?", drawn, x, y, [Mark("capacity", x=100)])


def draw_overload(waited: Mapping[str, Sequence[tuple[float, float]]]) -> Picture:
    """The wait of each request against the moment it came, a curve for each load."""
    drawn = [Curve(f"load {name}", *zip(*points)) for name, points in waited.items()]
    x, y = Axis("arrived after, seconds"), Axis("mean wait of 20 arrivals, seconds", low=0)
    return draw_chart("Does the wait settle?", drawn, x, y)

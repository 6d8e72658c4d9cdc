"""The wait against the load."""

from collections.abc import Mapping, Sequence

from course.lab.lesson_02.theory import md1_wait
from course.lab.lesson_02.traffic import load_of, mean_wait
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import Run
from course.lab.style import ALARM, number
from course.lab.svg import Picture

HIGHEST = 12.0
"""Service times: the curve has no end, the picture has."""


def draw_wait_curve(runs: Mapping[str, Run], simulated_points: tuple[Sequence[float], Sequence[float]]) -> Picture:
    """Mean wait in service times against load: the formula, the simulator, and this machine."""
    loads = [i / 200 for i in range(10, 197) if md1_wait(i / 200) <= HIGHEST]
    real = sorted((load_of(run), mean_wait(run)) for run in runs.values())
    curves = [
        Curve("this machine, one seat", [100 * x for x, _ in real], [y for _, y in real], "points", ALARM),
        Curve("simulated 70B, one seat", [100 * x for x in simulated_points[0]], simulated_points[1], "points"),
        Curve("formula (M/D/1)", [100 * x for x in loads], [md1_wait(x) for x in loads], "dashes"),
    ]
    x, y = Axis("load, % of capacity", low=0, high=110), Axis("mean wait, service times", low=0, high=HIGHEST)
    told = "; ".join(
        f"{curve.name}: " + ", ".join(f"{number(b)} at {a:.0f}%" for a, b in zip(curve.xs, curve.ys))
        for curve in curves[:2]
    )
    found = f"{told}. The formula: " + ", ".join(f"{number(md1_wait(x))} at {x:.0%}" for x in (0.5, 0.8, 0.95)) + "."
    return draw_chart(
        "How does the wait grow with the load?", curves, x, y, [Mark("capacity", x=100)], description=found
    )


def draw_many_seats(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Picture:
    """p99 of the wait against load, a curve for each number of seats."""
    drawn = [Curve(f"{n} seats", [100 * x for x, _ in points], [y for _, y in points]) for n, points in curves.items()]
    found = "; ".join(
        f"{n} seats: " + ", ".join(f"{number(y)} s at {x:.0%}" for x, y in points) for n, points in curves.items()
    )
    return draw_chart(
        "And with many seats?", drawn, Axis("load, % of the capacity of so many seats"), Axis("p99 of the wait, "
        "s", low=0),
        [Mark("capacity", x=100)], description=f"{found}.",
    )  # fmt: skip

"""The wait against the load; waits by kind of request; what became of everybody at the door."""

from collections.abc import Mapping, Sequence

from course.lab.lesson_02 import simulated
from course.lab.lesson_02.theory import md1_wait
from course.lab.lesson_02.traffic import load_of, mean_wait
from course.lab.lesson_02.visits import Visit
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import Run
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, number
from course.lab.svg import Picture, Scale, phase_fill, rect, swatches, text

HIGHEST = 12.0
"""Service times: the curve has no end, the picture has."""


def draw_wait_curve(runs: Mapping[str, Run], simulated_points: tuple[Sequence[float], Sequence[float]]) -> Picture:
    """Mean wait in service times against load: the formula, the simulator, and this machine."""
    loads = [i / 200 for i in range(10, 197) if md1_wait(i / 200) <= HIGHEST]
    real = sorted((load_of(run), mean_wait(run)) for run in runs.values())
    curves = [
        Curve("this machine, one seat", [100 * x for x, _ in real], [y for _, y in real], "points", ALARM),
        Curve("simulated 70B, one seat", [100 * x for x in simulated_points[0]], simulated_points[1], "points"),
        Curve("formula (M/D/1)", [100 * x for x in loads], [md1_wait(x) for x in loads], "dashes", SOFT_INK),
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


SOFT_INK = "#020202"
"""chart.py's stand-in for the theme's soft ink."""


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


def draw_order(visits: Sequence[Visit], title: str) -> Picture:
    """A point a request: when it came, and how long it stood in line."""
    kinds = {
        "short prompts": [v for v in visits if v.prompt <= simulated.LONG],
        "long prompts": [v for v in visits if v.prompt > simulated.LONG],
    }
    curves = [
        Curve(f"{name}, mean {number(sum(v.wait for v in seated) / len(seated))} s" if seated else f"{name}: "
        f"turned away",
              [v.arrival for v in seated], [v.wait for v in seated], "points")
        for name, group in kinds.items() for seated in [[v for v in group if v.wait is not None]]
    ]  # fmt: skip
    away = sum(visit.ending == "refused" for visit in visits)
    found = "; ".join(curve.name for curve in curves) + (f"; {away} turned away." if away else ".")
    return draw_chart(
        title, curves, Axis("arrival, s"), Axis("wait in line, s", low=0, high=30), description=f"Mean wait: {found}"
    )


OUTCOMES = {
    "in time": (phase_fill("decode"), PHASE_COLOURS["decode"]),
    "late": (phase_fill("first_token"), PHASE_COLOURS["first_token"]),
    "gave up": (phase_fill("queue"), PHASE_COLOURS["queue"]),
    "refused": (ALARM, ALARM),
}
"""Fill and outline of what became of a request."""


def draw_outcomes(outcomes: Mapping[str, Mapping[str, int]], title: str) -> Picture:
    """A bar a setting: in time, late, gave up, refused."""
    left, top = 150, 34
    body = swatches(left, 14, {outcome: fill for outcome, (fill, _) in OUTCOMES.items()}, size=12)
    for i, (name, counts) in enumerate(outcomes.items()):
        y, total = top + 30 * i, sum(counts.values())
        scale, edge = Scale(0, total, left, WIDTH - 20), 0
        body += text(left - 10, y + 15, name, text_anchor="end", font_weight="bold")
        for outcome, count in counts.items():
            fill, stroke = OUTCOMES[outcome]
            width = scale(edge + count) - scale(edge)
            if count:
                body += rect(scale(edge), y, width - 1, 21, fill=fill, stroke=stroke)
            if width > 30:
                look = {"fill": "#fff", "stroke": stroke, "stroke_width": 3.5, "paint_order": "stroke"}
                body += text(scale(edge) + width / 2, y + 15, f"{count / total:.0%}", text_anchor="middle", **look)
            edge += count
    found = "; ".join(
        f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        for name, counts in outcomes.items()
    )
    return Picture(title, body, top + 30 * len(outcomes) + 6, description=f"{found}.")

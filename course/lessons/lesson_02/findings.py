"""What a run of lesson 02 showed, in words: findings.toml, picked by the outcome."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_02 import traffic
from course.lessons.lesson_02.theory import mg1_wait
from course.lessons.lesson_02.visits import mean, visits_of, waits

FLAT = 0.5
"""A second slot count whose wait is below this share of the first one's has flattened the curve."""


def growth(runs: Mapping[str, Run]) -> Finding:
    """The growth of the wait, and how little a short run says of it."""
    low, high = traffic.short_scatter(runs)
    short, found = traffic.short_growth(runs), traffic.long_growths(runs)
    waited = ", ".join(f"{seconds(mean(waits(visits_of(run))))} at {load}" for load, run in runs.items())
    formula = mg1_wait(traffic.LOADS[-1], 0) / mg1_wait(traffic.LOADS[0], 0)
    values = {"low": low, "high": high, "short": short, "waited": waited, "count": len(next(iter(runs.values())).rows)}
    values |= {"long": mean(found), "long_low": min(found), "long_high": max(found), "formula": formula}
    values["total"] = traffic.REPEATS * traffic.LONG_RUN
    return tell("02", "growth", "inside" if low <= short <= high else "outside", **values)


def slots(curves: Mapping[int, Sequence[tuple[float, float]]]) -> Finding:
    """What more slots do to the curve."""
    (few, first), *_, (many, last) = curves.items()
    middle, full = (tuple(points[i][1] for points in (first, last)) for i in (1, -1))
    grew = [late / max(early, 1e-9) for early, late in zip(middle, full)]
    values = {"few": few, "many": many, "low": first[1][0], "high": first[-1][0], "middle": middle, "full": full}
    flat = middle[1] < FLAT * middle[0] and grew[1] > grew[0]
    return tell("02", "slots", "flat" if flat else "alike", **values, grew=grew)


def overload(waited: Mapping[str, Sequence[tuple[float, float]]]) -> Finding:
    """Whether the wait went on growing above capacity: its last quarter against its second."""
    grew = {}
    for name, points in waited.items():
        ys = [y for _, y in points]
        quarter = len(ys) // 4
        grew[name] = mean(ys[-quarter:]) / max(mean(ys[quarter : 2 * quarter]), 1e-9)
    below, *_, above = grew
    kind = "grows" if grew[above] > 1.5 and grew[above] > grew[below] else "unclear"
    last = {name: points[-1][1] for name, points in waited.items()}
    return tell("02", "overload", kind, above=above, below=below, last=last[above], calm=last[below])

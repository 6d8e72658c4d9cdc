"""A ruler over a distribution: drag it from p50 to p99.9, and see which requests it speaks of."""

from collections.abc import Sequence

from course.lab.explorer import Explorer, buttons, slider
from course.lab.pictures.distribution import beside
from course.lab.run import Run, itl_of, percentile
from course.lab.snapshot import RequestView
from course.lab.style import ALARM, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, text, time_axis

LEFT = 150
BUCKET_BORDERS = (64, 256, 1024, 4096)
"""Prompt lengths, tokens: up to 64, 65 to 256, ... and over 4096."""
METRICS = {
    "TTFT": lambda view: [view.deliveries[0] - view.borders[0]] if view.deliveries else [],
    "E2E": lambda view: [view.borders[-1] - view.borders[0]],
    "ITL": itl_of,
}


def buckets(run: Run, metric: str) -> dict[str, list[float]]:
    """Values of a metric: all together, then by prompt length."""
    groups: dict[str, list[float]] = {"all": []}
    for view in sorted(run.finished, key=lambda view: view.num_prompt_tokens):
        values = METRICS[metric](view)
        groups["all"] += values
        groups.setdefault(_bucket(view), []).extend(values)
    return groups


def _bucket(view: RequestView) -> str:
    low = 1
    for border in BUCKET_BORDERS:
        if view.num_prompt_tokens <= border:
            return f"{low}–{border} tokens"
        low = border + 1
    return f"{low}+ tokens"


def draw_ruler(run: Run, metric: str, q: float) -> Picture:
    """A dot strip a bucket; the percentile as a line, what lies beyond it in alarm colour, the mean as a cross."""
    groups = {name: values for name, values in buckets(run, metric).items() if values}
    if not groups:
        return Picture(f"There is no {metric} to rank: no request has one.", "", 4)
    scale = Scale(0, 1.1 * max(groups["all"]), LEFT, WIDTH - 20)
    body = time_axis(scale, 4, 60 * len(groups), metric)
    for i, (name, values) in enumerate(groups.items()):
        body += _strip(name, values, q, scale, 48 + 60 * i)
    values = groups["all"]
    beyond = sum(value > percentile(values, q) for value in values)
    mean, mark = seconds(sum(values) / len(values)), seconds(percentile(values, q))
    found = f"{metric}: mean {mean}, p{q:g} {mark}, {beyond} of {len(values)} beyond."
    return Picture(f"Which are slower than p{q:g} of the {metric}?", body, 60 * len(groups) + 34, description=found)


def _strip(name: str, values: Sequence[float], q: float, scale: Scale, base: float) -> str:
    mark = percentile(values, q)
    mean = sum(values) / len(values)
    beyond = sum(value > mark for value in values)
    body = text(LEFT - 10, base - 14, name, size=12, text_anchor="end")
    body += text(LEFT - 10, base, f"n = {len(values)}, {beyond} beyond", size=11, fill=SOFT, text_anchor="end")
    body += boxes([(scale(v) - 1.5, base - 16, 3, 16) for v in values if v <= mark], fill=SOFT, fill_opacity=0.55)
    body += boxes([(scale(v) - 1.5, base - 16, 3, 16) for v in values if v > mark], fill=ALARM)
    body += line(scale(mark), base - 32, scale(mark), base + 2, stroke=INK, stroke_width=2)
    body += text(scale(mean), base - 4, "✕", size=13, text_anchor="middle")
    return body + beside(scale(mark), base - 24, f"p{q:g} {seconds(mark)}, mean ✕ {seconds(mean)}")


class Ruler(Explorer):
    """The ruler with its slider.

    Args:
        run: a finished run.
        metric: TTFT, E2E or ITL to start with.
    """

    def __init__(self, run: Run, metric: str = "TTFT") -> None:
        super().__init__(
            lambda metric, q: draw_ruler(run, metric, q),
            metric=buttons("metric", list(METRICS), metric),
            q=slider("percentile", 50.0, 99.9, 99.0, 0.1),
        )

"""A load test as a picture: every request on one time axis, and how TTFT, ITL and TPOT are spread."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minillm.bench.loadgen.observation import Observation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, ALARM = "#333333", "#EEEEEE", "#D55E00"
WAIT, FIRST, DECODE = "#0072B2", "#E69F00", "#009E73"
"""Okabe and Ito's colours, as everywhere: before the first token blue, the first token orange, decode green."""
WIDTH_INCHES, HEIGHT_INCHES, DPI = 8, 8, 100
MOST_ROWS = 400
"""Of more requests, every n-th is drawn: a row needs a pixel."""


def draw_load_test(
    file: Path, observations: Sequence[Observation], title: str, slo: dict[str, Any] | None = None
) -> None:
    """Write the picture.

    Args:
        slo: limits by metric, seconds, drawn as dashed lines.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    rows, curves = figure.subplots(2, 1, height_ratios=(3, 2))
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    _draw_rows(rows, observations)
    _draw_curves(curves, [o for o in observations if o.completed], slo or {})
    for axes in (rows, curves):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, color=FAINT)
        axes.set_axisbelow(True)
    figure.savefig(file, dpi=DPI)


def _draw_rows(axes: "Axes", observations: Sequence[Observation]) -> None:
    """A row a request, in order of sending: held back (dotted), wait (blue), decode (green); x = no answer."""
    sent = sorted(((o.sent, o) for o in observations if o.sent is not None), key=lambda pair: pair[0])
    shown = sent[:: -(-len(sent) // MOST_ROWS) or 1]
    for row, (start, o) in enumerate(shown):
        if o.due is not None and start - o.due > 0.005:
            axes.plot([o.due, start], [row, row], ":", color=ALARM, linewidth=1)
        if not o.completed:
            axes.plot(start, row, "x", color=ALARM, markersize=4)
            continue
        first = o.deliveries[0]
        axes.hlines(row, start, first, color=WAIT, linewidth=2)
        assert o.ended is not None
        axes.hlines(row, first, o.ended, color=DECODE, linewidth=2)
        axes.plot(first, row, "|", color=FIRST, markersize=4)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the start", color=INK)
    axes.set_ylabel("requests" if len(shown) == len(sent) else f"every {-(-len(sent) // MOST_ROWS)}th request")
    axes.set_title(
        "Blue: waiting for the first token. Green: decode. Dotted: held back by this client. x: no answer.",
        fontsize=9, color=INK, loc="left",
    )  # fmt: skip


def _draw_curves(axes: "Axes", completed: Sequence[Observation], slo: dict[str, Any]) -> None:
    """The share of samples that took at most x."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    timelines = [record.timeline for o in completed if (record := o.as_request_record()) is not None]
    samples = {
        "ttft": ([t.ttft for t in timelines if t.ttft is not None], FIRST),
        "itl": ([gap for t in timelines for gap in t.itl], DECODE),
        "tpot": ([t.tpot for t in timelines if t.tpot], INK),
        "e2e": ([t.e2e for t in timelines if t.e2e is not None], WAIT),
    }
    for name, (values, colour) in samples.items():
        if not values:
            continue
        axes.ecdf(np.maximum(values, 1e-5) * 1e3, color=colour, label=name.upper())
        if slo.get(name) is not None:
            axes.axvline(slo[name] * 1e3, color=colour, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="milliseconds (dashed: the limit)", ylabel="share of samples up to here", ylim=(0, 1.02))
    if completed:
        axes.legend(frameon=False)

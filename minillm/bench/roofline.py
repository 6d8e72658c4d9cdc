"""The roofline picture (Williams et al. 2009): what was reached, under what this machine can do.

Along x, arithmetic intensity: operations for each byte that must be moved. Along y, operations per
second. Left of the ridge memory is the limit, right of it the matrix units are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.runner.machine_peaks import MachinePeaks

PEAK_COLOUR = "#999999"
DECODE_COLOUR, PREFILL_COLOUR = "#009E73", "#0072B2"
"""Okabe and Ito's colours, as everywhere: decode green, prefill blue."""
WIDTH_INCHES, HEIGHT_INCHES, DPI = 8, 5, 100
"""800 x 500 pixels."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured step in the roofline picture."""

    label: str
    intensity: float
    """FLOP per byte."""
    flops_per_s: float


def with_unit(value: float, unit: str) -> str:
    """`2.9 TB/s`: three digits and a prefix."""
    scale, prefix = next((pair for pair in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if value >= pair[0]), (1e6, "M"))
    return f"{value / scale:.3g} {prefix}{unit}"


def draw_roofline(file: Path, report: dict[str, Any], points: Sequence[Point], what: str, colour: str) -> None:
    """Write the picture: the measured peaks of the report's machine, and a labelled point for each of `points`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    peaks: MachinePeaks = report["roof"]
    memory, matmul = peaks.memory, peaks.matmul
    ridge = matmul / memory
    intensities, reached = [point.intensity for point in points], [point.flops_per_s for point in points]
    left, right = min(*intensities, ridge) / 10, max(*intensities, ridge) * 6
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.loglog([left, ridge, right], [memory * left, matmul, matmul], color=PEAK_COLOUR, linewidth=2)
    axes.plot(intensities, reached, "o-", color=colour, markersize=6, linewidth=1)
    axes.set(xlim=(left, right), ylim=(min(min(reached) / 3, memory * left), matmul * 4))
    axes.set(xlabel="arithmetic intensity, FLOP per byte moved", ylabel="FLOP per second")
    axes.set_title(f"{report['model']}, {report['dtype']}: {what}\n{report['device']}", fontsize=11, loc="left")
    axes.grid(True, which="major", color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    figure.draw_without_rendering()  # settles the layout, and with it the angle of the slope
    (x0, y0), (x1, y1) = axes.transData.transform([(left, memory * left), (ridge, matmul)])
    slope: dict[str, Any] = {"rotation": math.degrees(math.atan2(y1 - y0, x1 - x0)), "rotation_mode": "anchor"}
    said = f"memory {peaks.memory_kind}: {with_unit(memory, 'B/s')}"
    axes.annotate(said, (1.2 * left, 1.2 * memory * left), xytext=(-4, 6), textcoords="offset points", **slope)
    said = f"{peaks.matmul_dtype} matmul: {with_unit(matmul, 'FLOP/s')}"
    axes.annotate(said, (right, matmul), xytext=(-6, 6), textcoords="offset points", ha="right")
    for point in points:
        at = (point.intensity, point.flops_per_s)
        axes.annotate(point.label, at, xytext=(4, -13), textcoords="offset points", fontsize=9, color=colour)
    figure.savefig(file, dpi=DPI)

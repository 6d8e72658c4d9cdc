"""The roofline picture (Williams et al. 2009): what was reached, under what this machine can do.

Along x, arithmetic intensity: operations for each byte that must be moved. Along y, operations per
second. Left of the ridge memory is the roof, right of it the matrix units are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    from minillm.bench.roof import Roof

SUFFIXES = (".png", ".svg")
ROOF_COLOUR, TEXT_COLOUR = "#999999", "#333333"
DECODE_COLOUR, PREFILL_COLOUR = "#009E73", "#0072B2"
"""Okabe and Ito's colours, as everywhere: decode green, prefill blue."""
WIDTH_INCHES, HEIGHT_INCHES, DPI = 8, 5, 100
"""800 x 500 pixels."""


@dataclass(frozen=True, slots=True)
class Point:
    label: str
    intensity: float
    """FLOP per byte."""
    flops_per_s: float


def check_can_draw(file: Path) -> None:
    """Say so before an hour of measuring, not after.

    Raises:
        ConfigError: the file's name does not end in .png or .svg.
        MissingPackageError: matplotlib is not installed.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--roofline draws .png or .svg, not {file.name!r}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            '--roofline draws with matplotlib, which is not installed: pip install -c constraints.txt -e ".[lab]"'
        ) from error


def draw_roofline(file: Path, points: Sequence[Point], roof: "Roof", title: str, colour: str) -> None:
    """Write the picture: the measured roof, and a labelled point for each of `points` in `colour`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    memory, matmul = roof.memory, roof.matmul
    ridge = matmul / memory
    intensities = [point.intensity for point in points]
    left, right = min(*intensities, ridge) / 4, max(*intensities, ridge) * 8
    bottom = min(min(point.flops_per_s for point in points) / 3, memory * left)

    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.loglog([left, ridge, right], [memory * left, matmul, matmul], color=ROOF_COLOUR, linewidth=2)
    axes.set(xlim=(left, right), ylim=(bottom, matmul * 4))
    axes.set_xlabel("arithmetic intensity, FLOP per byte moved", color=TEXT_COLOUR)
    axes.set_ylabel("FLOP per second", color=TEXT_COLOUR)
    axes.set_title(title, fontsize=11, color=TEXT_COLOUR, loc="left")
    axes.grid(True, which="major", color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    middle = (left * min(ridge, max(intensities))) ** 0.5
    axes.annotate(
        f"memory {roof.memory_kind}: {memory / 1e9:.3g} GB/s",
        (middle, memory * middle),
        xytext=(-6, 8),
        textcoords="offset points",
        ha="right",
        color=TEXT_COLOUR,
    )
    axes.annotate(
        f"matmul: {matmul / 1e12:.3g} TFLOP/s ({roof.matmul_dtype})",
        (right, matmul),
        xytext=(-6, 6),
        textcoords="offset points",
        ha="right",
        color=TEXT_COLOUR,
    )
    axes.plot(intensities, [point.flops_per_s for point in points], "o-", color=colour, markersize=6, linewidth=1)
    for point in points:
        axes.annotate(
            point.label,
            (point.intensity, point.flops_per_s),
            xytext=(4, -13),
            textcoords="offset points",
            fontsize=9,
            color=colour,
        )
    figure.savefig(file, dpi=DPI)

"""A chart of a dashboard, described; it is drawn only where it is looked at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Line:
    """One series of a panel."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: Literal["line", "dashes", "points"] = "line"


@dataclass(frozen=True)
class Panel:
    """A chart, described; it is drawn only where it is looked at."""

    lines: tuple[Line, ...]
    x: str
    y: str
    limit: float | None = None
    """A horizontal line, where there is a limit to know."""
    limit_name: str = ""
    high: float | None = None
    """Where the y axis ends, if not above the highest point: a share of something is seen against all of it."""

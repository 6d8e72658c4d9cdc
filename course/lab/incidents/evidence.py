"""What an answer to a question looks like: words with numbers, a table, and a panel as on a dashboard.

Panels say what was measured, never what it means.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from course.lab.display import table
from course.lab.incidents.panel import Panel
from course.lab.incidents.service import Play


@dataclass(frozen=True)
class Evidence:
    """The answer to one question."""

    id: str
    question: str
    text: str
    data: pd.DataFrame
    panel: Panel | None = None

    def __str__(self) -> str:
        return f"{self.question}\n{self.text}\n{self.data.to_string(float_format=written)}"

    def _repr_html_(self) -> str:
        look = "border:1px solid var(--jp-border-color2, #d0d7de);border-radius:3px;padding:8px 12px;max-width:840px"
        head = self.picture() or f"<b>{escape(self.question)}</b>"
        return f'<div style="{look}">{head}<p>{escape(self.text)}</p>{as_html(self.data)}</div>'

    def picture(self) -> str:
        """The panel as SVG; empty where a table says it all."""
        if self.panel is None:
            return ""
        from course.lab.incidents.board import draw_panel  # matplotlib takes a second to import; terminals need none

        return draw_panel(self.panel, self.question).svg()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        rows = self.data.reset_index().astype(object).where(self.data.reset_index().notna(), None)
        return {"id": self.id, "question": self.question, "text": self.text, "data": rows.to_dict("records")}


@dataclass(frozen=True)
class Scene:
    """What there is to be looked at: the service today, and as it was a week ago."""

    before: Play
    now: Play
    changes: tuple[tuple[str, str], ...]
    """(when, what), as the log has them."""


@dataclass(frozen=True)
class Question:
    """Something to ask, and how long it takes to find out."""

    id: str
    text: str
    minutes: int
    look: Callable[[Scene], "Finding"]


@dataclass(frozen=True)
class Finding:
    """What a question found, before it has a name."""

    text: str
    data: pd.DataFrame
    panel: Panel | None = None


def written(value: float) -> str:
    """Four significant digits, without an exponent; nothing to tell is a dash."""
    if math.isnan(value):
        return "–"
    if abs(value) < TINY:
        return f"{value:.5f}".rstrip("0").rstrip(".")
    return f"{value:.4g}" if abs(value) < 9_999.5 else f"{value:.0f}"  # what rounds to 10000 would have an exponent


TINY = 1e-3


def as_html(data: pd.DataFrame) -> str:
    """A frame as a table of the course's look; the name of its index stands over the first column."""
    rows = [(str(name), *map(_cell, row)) for name, row in zip(data.index, data.to_numpy(dtype=object))]
    return table((str(data.index.name or ""), *map(str, data.columns)), rows) if len(data.columns) else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return written(float(value)) if isinstance(value, (float, np.floating)) else str(value)

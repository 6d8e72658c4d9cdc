"""What an answer to a question looks like: words with numbers, a table, and a panel as on a dashboard.

Panels say what was measured, never what it means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

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
        table = self.data.to_html(float_format=written, border=0)
        title = f"<b>{escape(self.question)}</b>"
        return f'<div style="{look}">{title}{self.picture()}<p>{escape(self.text)}</p>{table}</div>'

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
    """Four significant digits, without an exponent."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"

"""What an answer to a question looks like: words with numbers, a table, and a panel as on a dashboard.

Panels say what was measured, never what it means. Tables are rows of plain values; pandas is imported where somebody
wants to compute with one (`data`), and a browser has none.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING, Any

from course.incidents.service import ServicePlay
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import fill_in, seconds
from course.lab.svg import Picture
from minillm.core.brief import brief

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, object]
LAST_WEEK, NOW = "last week", "now"
NO_DATA = "No data: whatever fed this panel stopped last night."
PANEL_HEIGHT = 200
TINY = 1e-3


@dataclass(frozen=True)
class NamedRows:
    """A table: values by column, of each row by its name."""

    rows: Mapping[Any, Row]
    name: str = ""
    """What the rows are named by."""

    @property
    def columns(self) -> list[str]:
        """Names of all rows' columns, in order."""
        return list(dict.fromkeys(str(column) for row in self.rows.values() for column in row))

    def frame(self) -> "pd.DataFrame":
        """For those who compute with it."""
        import pandas as pd

        return pd.DataFrame.from_dict(dict(self.rows), orient="index").rename_axis(self.name or None)

    def records(self, name: str = "") -> list[dict[str, Any]]:
        """JSON-able: a dictionary a row; what isn't finite, or isn't there, is None."""
        head = name or self.name or "index"
        return [
            {head: key, **{column: _plain(row.get(column)) for column in self.columns}}
            for key, row in self.rows.items()
        ]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class EvidencePanel:
    """A chart of a dashboard, described; it is drawn only where it is looked at."""

    lines: tuple[Curve, ...]
    x: str
    y: str
    limit: float | None = None
    """A horizontal line, where there is a limit to know."""
    limit_name: str = ""
    high: float | None = None
    """Where the y axis ends, if not above the highest point: a share of something is seen against all of it."""

    __repr__ = brief

    def draw(self, title: str) -> Picture:
        """Curves between two axes. The second one is dashed: where two lie on each other, both are seen."""
        curves = [
            replace(each, style="dashes") if i == 1 and each.style == "line" else each
            for i, each in enumerate(self.lines)
        ]
        marks = [] if self.limit is None else [Mark(self.limit_name, y=self.limit)]
        y = Axis(self.y, low=0, high=self.high)
        return draw_chart(title, curves, Axis(self.x), y, marks, height=PANEL_HEIGHT)


@dataclass(frozen=True)
class IncidentScene:
    """What there is to be looked at: the service today, and as it was a week ago."""

    before: ServicePlay
    now: ServicePlay
    changes: tuple[tuple[str, str], ...]
    """(when, what), as the log has them."""
    missing: frozenset[str] = frozenset()
    """Ids of questions that nothing answers: their panels have no data."""
    stale: frozenset[str] = frozenset()
    """Ids of questions whose panels show last week's data as today's."""

    def weeks(self, of: Callable[[ServicePlay], Any]) -> dict[str, Any]:
        """The same of both weeks, by name."""
        return {LAST_WEEK: of(self.before), NOW: of(self.now)}


@dataclass(frozen=True)
class QuestionResult:
    """What a question found, before it is put into words."""

    rows: Mapping[Any, Row]
    """The table, a row for each key."""
    name: str = ""
    """What stands over the first column."""
    panel: EvidencePanel | None = None
    says: Mapping[str, object] = field(default_factory=dict)
    """What the question's words name beside the rows."""

    __repr__ = brief


@dataclass(frozen=True)
class EvidenceQuestion:
    """Something to ask, how long it takes to find out, and the words of the answer."""

    id: str
    group: str
    """What it is about."""
    text: str
    minutes: int
    says: str
    look: Callable[[IncidentScene], QuestionResult]

    def to_dict(self) -> dict[str, Any]:
        """What can be known before it is asked."""
        return {name: getattr(self, name) for name in ("id", "group", "text", "minutes")}

    def find_out(self, scene: IncidentScene) -> "Evidence":
        """The answer to it, or what a broken panel shows in its place."""
        if self.id in scene.missing:
            return Evidence(self.id, self.text, NO_DATA, NamedRows({}))
        found = self.look(replace(scene, now=scene.before) if self.id in scene.stale else scene)
        told = fill_in(self.says, rows=found.rows, **found.says)
        return Evidence(self.id, self.text, told, NamedRows(dict(found.rows), found.name), found.panel)


@dataclass(frozen=True)
class Evidence:
    """The answer to one question."""

    id: str
    question: str
    text: str
    table: NamedRows
    panel: EvidencePanel | None = None

    @property
    def data(self) -> "pd.DataFrame":
        """The table, to compute with."""
        return self.table.frame()

    def __str__(self) -> str:
        return "\n".join([self.question, self.text, *([as_text(self.table)] if self.table.rows else [])])

    def _repr_html_(self) -> str:
        look = "border:1px solid var(--jp-border-color2, #d0d7de);padding:8px 12px;max-width:840px;line-height:1.4"
        head = self.panel.draw(self.question).svg() if self.panel else f"<b>{escape(self.question)}</b>"
        return f'<div style="{look}">{head}<p>{escape(self.text)}</p>{as_html(self.table)}</div>'

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"id": self.id, "question": self.question, "text": self.text, "data": self.table.records()}


def written(value: float) -> str:
    """Four significant digits, thousands apart, without an exponent; nothing to tell is a dash."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "never"
    if abs(value) < TINY:
        return f"{value:.5f}".rstrip("0").rstrip(".")
    return f"{value:.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"  # what rounds to 10000 would have an exponent


def as_html(data: NamedRows) -> str:
    """In the course's look; what rows are named by stands over the first column."""
    from course.lab.display import table

    return table(*as_cells(data)) if data.columns else ""


def as_text(data: NamedRows) -> str:
    """For a terminal, with the same units."""
    head, rows = as_cells(data)
    told = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*told)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in told)


def as_cells(data: NamedRows) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What stands over a table's columns, and each row's name and cells, for people."""
    columns = data.columns
    rows = [
        (str(name), *(_cell(row.get(column), data.name, str(name), column) for column in columns))
        for name, row in data.rows.items()
    ]
    return (data.name, *columns), rows


def _cell(value: object, *names: str) -> str:
    """For people; the names over it and beside it say what kind of number it is."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f"{int(value):,}"
    if not isinstance(value, float):
        return {"None": "–", "True": "yes", "False": "no"}.get(str(value), str(value))
    if not math.isfinite(value):
        return written(value)
    if any(name == "share" or name.endswith(", share") or name.startswith("not answered") for name in names):
        return f"{value:.1%}"
    return seconds(value) if any("seconds" in name for name in names) else written(value)

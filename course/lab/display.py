"""How the lab's widgets show themselves: live in a running notebook, as plain HTML where there is no kernel."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeVar

import ipywidgets as widgets

from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS

Item = TypeVar("Item")
NO_PROSE = re.compile(r"(<(svg|style|script)\b.*?</\2>)", re.S)
AMOUNTS = re.compile(r"(?:^|(?<=>))[^<]*\$[^<]*\$[^<]*")
"""A piece of text with two dollar signs or more."""


def amounts_kept(html: str) -> str:
    """The same, safe from MathJax: JupyterLab sets what stands between two dollar signs of a sentence as a formula."""
    prose = NO_PROSE.split(html)[::3]
    rest = [found[0] for found in NO_PROSE.finditer(html)]
    kept = [AMOUNTS.sub(lambda found: found[0].replace("$", "<span>$</span>"), part) for part in prose]
    return "".join(part for pair in zip(kept, [*rest, ""]) for part in pair)


class LivePanel:
    """Something with a live widget and a static stand-in for printed and unrun notebooks."""

    widget: widgets.Widget

    def static_html(self) -> str:
        """What a reader without a kernel sees."""
        raise NotImplementedError

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle = self.widget._repr_mimebundle_()
        live = bundle[0] if isinstance(bundle, tuple) else bundle
        return {
            **live,
            "text/html": self.static_html(),
            "text/plain": f"<{type(self).__name__}: run this cell to use it>",
        }


class Html:
    """A piece of HTML that a notebook shows.

    Args:
        text: its plain form.
        marks: metadata of the output, see marks.py.
    """

    def __init__(self, html: str, text: str, marks: Mapping[str, Any] | None = None) -> None:
        self.html = html
        self.text = text
        self.marks = dict(marks or {})

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, Any], ...]:
        return {"text/html": amounts_kept(self.html), "text/plain": self.text}, self.marks


def fold(summary: str, html: str) -> str:
    """Something that a reader opens if they want to."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def tabs(name: str, pages: Mapping[str, str]) -> str:
    """Pages of HTML behind tabs, by what is written on each; the first one is in sight. Without styles, all are.

    Args:
        name: its own on the page; letters.
    """
    style = (
        f".{name}>input{{position:absolute;opacity:0}}.{name}>div{{display:none;padding-top:8px}}"
        f".{name}>label{{display:inline-block;padding:6px 12px;cursor:pointer;border-bottom:3px solid transparent}}"
        f".{name}>input:checked+label{{border-color:currentColor;font-weight:bold}}"
        f".{name}>input:focus-visible+label{{outline:2px solid currentColor}}"
    )
    heads = bodies = ""
    for i, (title, html) in enumerate(pages.items()):
        place, checked = f"{name}-{i}", " checked" if i == 0 else ""
        style += f"#{place}:checked~.{place}{{display:block}}"
        heads += f'<input type="radio" name="{name}" id="{place}"{checked}><label for="{place}">{escape(title)}</label>'
        bodies += f'<div class="{place}">{html}</div>'
    return f'<div class="{name}" style="position:relative"><style>{style}</style>{heads}{bodies}</div>'


def phase_strip(phases: Iterable[str]) -> Html:
    """A small picture for a table: the five phases in a row, these filled, the others outlined."""
    chosen, squares = set(phases), ""
    for phase, colour in PHASE_COLOURS.items():
        fill = f"background:{colour};" if phase in chosen else "opacity:.5;"
        size = "display:inline-block;box-sizing:border-box;width:11px;height:11px;border-radius:2px;margin-right:2px"
        squares += f'<span style="{fill}border:1px solid {colour};{size}"></span>'
    words = ", ".join(label for phase, label in PHASE_LABELS.items() if phase in chosen)
    look = "white-space:nowrap"
    return Html(f'<span role="img" title="{words}" aria-label="{words}" style="{look}">{squares}</span>', words)


def link_to(place: str, words: str) -> Html:
    """A link, for a cell of a table."""
    return Html(f'<a href="{escape(place)}">{escape(words)}</a>', words)


def table(header: tuple[str, ...], rows: Sequence[tuple[str | Html, ...]]) -> str:
    """An HTML table. Text is escaped; it stands left (the first column, and any that runs long), numbers right."""
    is_text = [i == 0 or any(len(str(row[i])) > 24 for row in rows) for i in range(len(header))]
    head = "".join(_cell(name, is_text[i], "col") for i, name in enumerate(header))
    body = "".join(
        "<tr>" + "".join(_cell(cell, is_text[i], "" if i else "row") for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    look = "border-collapse:collapse;font-size:13px"
    return f'<table style="{look}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(content: str | Html, is_text: bool, names: str) -> str:
    """One cell; `names` says whether it is the name of its "row" or "col", or neither."""
    align = "text-align:left" if is_text else "text-align:right"
    if not is_text and names != "col":  # a long heading may break, a number may not
        align += ";white-space:nowrap"
    look = f"{align};padding:2px 16px 2px 0;line-height:1.35;font-weight:{'bold' if names == 'col' else 'normal'}"
    content = content.html if isinstance(content, Html) else escape(content)
    if not names or not content:  # an empty corner is the name of nothing
        return f'<td style="{look}">{content}</td>'
    return f'<th scope="{names}" style="{look}">{content}</th>'


def words_of(error: Exception) -> str:
    """What a learner is told of it: a ValueError's own words, and of anything else also what it is."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def trouble(words: str) -> str:
    """Why there is nothing to see, as HTML."""
    return f'<p style="border-left:6px solid {ALARM};padding:4px 12px">{escape(words)}</p>'


def bundle_of(shown: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a notebook would store of something that it can show: data by MIME type, and metadata."""
    bundle = shown._repr_mimebundle_()
    return bundle if isinstance(bundle, tuple) else (bundle, {})


def stack(*shown: Any) -> Html:
    """Pictures and tables under each other, as one thing to show."""
    marked = [bundle_of(each) for each in shown]
    html = "".join(data["text/html"] for data, _ in marked)
    text = "\n".join(data["text/plain"] for data, _ in marked)
    return Html(html, text, {name: value for _, marks in marked for name, value in marks.items()})


def as_table(header: tuple[str, ...], rows: Sequence[tuple[str | Html, ...]]) -> Html:
    """A table that shows itself, as HTML and as text."""
    return Html(table(header, rows), "\n".join("  ".join(map(str, row)) for row in (header, *rows)))


def table_by_name(heading: str, found: Mapping[str, Item], columns: Mapping[str, Callable[[Item], str]]) -> Html:
    """A table of named things: a row each, its name first.

    Args:
        heading: what the column of names is called.
        columns: by heading, what a thing's cell says.
    """
    rows = [(str(name), *(cell(each) for cell in columns.values())) for name, each in found.items()]
    return as_table((heading, *columns), rows)

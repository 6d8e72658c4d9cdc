"""How the lab's widgets show themselves: live in a running notebook, as plain HTML where there is no kernel."""

from html import escape
from typing import Any

import ipywidgets as widgets


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


def table(header: tuple[str, ...], rows: list[tuple[str, ...]], caption: str = "") -> str:
    """An HTML table with a text alternative in its caption. Cells are escaped; the first column names the row."""
    head = "".join(_cell(name, first=i == 0, tag="th") for i, name in enumerate(header))
    body = "".join("<tr>" + "".join(_cell(cell, first=i == 0) for i, cell in enumerate(row)) + "</tr>" for row in rows)
    above = f'<caption style="text-align:left;caption-side:top">{escape(caption)}</caption>' if caption else ""
    look = "border-collapse:collapse;font-size:13px"
    return f'<table style="{look}">{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(content: str, first: bool, tag: str = "td") -> str:
    """Text to the left, in the first column and where it runs long; numbers to the right, on one line."""
    is_text = first or len(content) > 24
    look = "text-align:left;padding:2px 0" if is_text else "text-align:right;white-space:nowrap;padding:2px 0"
    look += f";line-height:1.35;padding-left:{0 if first else 16}px;font-weight:{'bold' if tag == 'th' else 'normal'}"
    scope = ' scope="col"' if tag == "th" else ' scope="row"' if first else ""
    tag = "th" if first else tag
    return f'<{tag}{scope} style="{look}">{escape(content)}</{tag}>'


class Html:
    """A piece of HTML that a notebook shows; `text` is its plain form."""

    def __init__(self, html: str, text: str) -> None:
        self.html = html
        self.text = text

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


def as_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Html:
    """A table that shows itself, as HTML and as text."""
    return Html(table(header, rows), "\n".join("  ".join(row) for row in (header, *rows)))

"""What the search box knows: pages, sections and their words, read from the pages as they are written."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser

HEADINGS = ("h1", "h2", "h3")
SILENT = ("head", "header", "footer", "nav", "script", "style", "svg", "math", "pre", "button", "fieldset", "noscript")
SILENT_CLASSES = ("anchor-link", "bet", "cards", "check", "code", "outcome", "output", "pager", "skip", "yours")
"""Besides what isn't text: cards of other pages, bets, and what would tell how a bet comes out."""
INLINE = ("a", "abbr", "b", "code", "em", "i", "mark", "small", "span", "strong", "sub", "sup")
"""Tags within a word or beside a comma; all others part words."""
LONGEST_SECTION = 1600
"""Characters that are searched: a figure of the index's size, which a phone loads when its box is used."""


@dataclass
class PageSection:
    """From one heading to the next."""

    anchor: str
    """Nothing for a page's first heading: that's found at its top."""
    title: str = ""
    text: str = ""


class SectionReader(HTMLParser):
    """A page's sections, without pictures, code and bets."""

    def __init__(self) -> None:
        super().__init__()
        self.sections = [PageSection("")]
        self._silent = ""
        """The tag within which nothing is read, and how many of its name are open."""
        self._depth = 0
        self._heading = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            self._depth += tag == self._silent
            return
        told = {name: value or "" for name, value in attrs}
        if tag in SILENT or not set(told.get("class", "").split()).isdisjoint(SILENT_CLASSES):
            self._silent, self._depth = tag, 1
        elif tag in HEADINGS:
            self._heading = tag
            self.sections.append(PageSection(told.get("id", "")))
        elif tag not in INLINE:
            self._say(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._say(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._silent == tag:
            self._depth -= 1
            if not self._depth:
                self._silent = ""
        elif self._heading == tag:
            self._heading = ""

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._say(data)

    def _say(self, text: str) -> None:
        if self._heading:
            self.sections[-1].title += text
        else:
            self.sections[-1].text += text


def sections(page: str) -> list[PageSection]:
    """Those of a page's HTML that have a heading."""
    reader = SectionReader()
    reader.feed(page)
    read = (
        PageSection(each.anchor, " ".join(each.title.split()), " ".join(each.text.split())[:LONGEST_SECTION])
        for each in reader.sections
    )
    first, *others = (each for each in read if each.title)
    return [replace(first, anchor=""), *others]


def index(pages: Mapping[str, str], drawn: Mapping[str, str], glossary: str) -> list[dict[str, object]]:
    """What the search box loads.

    Args:
        pages: HTML by name.
        drawn: by name, the text of a page that its script draws.
        glossary: the page whose sections explain a word: the box puts one first that is what was typed.
    """
    found = {name: sections(page) for name, page in pages.items()}
    for name, text in drawn.items():
        found[name][0].text = text[:LONGEST_SECTION]
    return [
        {
            "page": f"{name}.html",
            "title": read[0].title,
            "explains": name == glossary,
            "sections": [asdict(each) for each in read],
        }
        for name, read in found.items()
    ]

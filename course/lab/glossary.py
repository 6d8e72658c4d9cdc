"""The glossary (course/glossary.md), and links to it from a term's first use in each lesson.

Links are put in when a notebook is made from its source, so authors write plain words. A term that a lesson defines
itself, in **bold** and before it's used, needs none. To link one by hand: `[token budget](glossary.md#token-budget)`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

from nbformat import NotebookNode

from course.lab.style import PHASE_COLOURS, PHASE_LABELS

FILE = Path(__file__).parents[1] / "glossary.md"
ENTRY = re.compile(r"^## (.+)\n\n(.+?) \[Lesson (\w+)\]\(\S+\)$", re.M)
NO_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$|^[#><][^\n]*|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]+>|https?://\S+", re.S | re.M
)
"""Code, formulas, links, tags, headings, quotations."""
ORDINARY = ("load", "batch", "sampling")
"""Terms that are ordinary words as well: these get no links by themselves."""
PHASE_BY_LABEL = {label: phase for phase, label in PHASE_LABELS.items()}


@dataclass(frozen=True)
class Term:
    """One entry of the glossary."""

    name: str
    meaning: str
    lesson: str
    """Number of the lesson that shows it."""

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w-]", "", self.name.lower().replace(" ", "-"))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The term as a word of its own, also in the plural; names and abbreviations only as they're written."""
        word = re.escape(self.name).replace(r"\ ", r"\s+")
        if self.name.islower():
            word = f"[{word[0].upper()}{word[0]}]{word[1:]}"
        return re.compile(rf"(?<![\w-]){word}(?:e?s)?(?![\w-])")


@cache
def terms() -> tuple[Term, ...]:
    """All entries, in the order of the page."""
    return tuple(Term(*found) for found in ENTRY.findall(FILE.read_text(encoding="utf-8")))


def with_links(notebook: NotebookNode) -> NotebookNode:
    """A lesson whose terms lead to the glossary where they're first used, and whose phases are in their colours."""
    longest_first = sorted(terms(), key=lambda term: -len(term.name))  # "token budget" isn't a first use of "token"
    known = dict.fromkeys((term for term in longest_first if term.name not in ORDINARY), False)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _coloured(_linked(cell.source, known))
    return notebook


def _linked(text: str, known: dict[Term, bool]) -> str:
    """Args: known: whether a term has been defined or linked before; it's brought up to date."""
    places: list[tuple[int, int, Term]] = []
    for term in (term for term, was_used in known.items() if not was_used):
        first = next(first_uses(text, term), None)
        if first is None:
            continue
        known[term] = True
        start, end = first
        is_defined = text[start - 2 : start] == "**" or text[end : end + 2] == "**"
        within_another = any(start < e and s < end for s, e, _ in places)
        if not (is_defined or within_another):
            places.append((start, end, term))
    for start, end, term in sorted(places, key=lambda place: -place[0]):
        text = f"{text[:start]}[{text[start:end]}](glossary.md#{term.anchor}){text[end:]}"
    return text


def first_uses(text: str, term: Term) -> Iterator[tuple[int, int]]:
    """Where a term stands in prose."""
    for found in term.pattern.finditer(text):
        if not any(start < found.end() and found.start() < end for start, end in _no_prose(text)):
            yield found.span()


@lru_cache(maxsize=8)
def _no_prose(text: str) -> list[tuple[int, int]]:
    """Spans of a text that are no prose; kept, since each term of the glossary asks for them."""
    return [found.span() for found in NO_PROSE.finditer(text)]


def _coloured(text: str) -> str:
    """Each phase that stands in bold, underlined with its colour."""

    def mark(found: re.Match[str]) -> str:
        phase = PHASE_BY_LABEL[found.group(1).lower()]
        return f'<b style="border-bottom: 3px solid {PHASE_COLOURS[phase]}">{found.group(1)}</b>'

    return re.sub(rf"\*\*((?i:{'|'.join(PHASE_BY_LABEL)}))\*\*", mark, text)

"""Terms are used after they're explained, or lead to where they are."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.lab.build import COURSE, lesson_sources, read_lesson, read_source
from course.lab.glossary import FILE, ORDINARY, Term, first_uses, terms, with_links
from course.lessons.start.contents import lessons

LINK = re.compile(r"\[[^\]]+\]\(glossary\.md#([\w-]+)\)")
KNOWN = {term.anchor: term for term in terms()}


def prose_of(path) -> list[str]:
    return [cell.source for cell in read_source(path).cells if cell.cell_type == "markdown"]


def test_entries_are_whole_in_order_and_shown_by_the_lesson_they_name() -> None:
    headings = re.findall(r"^##+ (.+)$", FILE.read_text(), re.M)
    assert headings == [term.name for term in terms()] == sorted(headings, key=str.lower)
    assert len(KNOWN) == len(headings) and set(ORDINARY) < {*headings}
    known = lessons()
    for term in terms():
        told = re.search(rf"## {re.escape(term.name)}\n\n.*\(([^)]*)\)\n", FILE.read_text() + "\n")
        assert told and told.group(1) == known[term.lesson].file
        prose = "\n".join(text for kind, text in known[term.lesson].cells if kind == "markdown")
        missing = [word for word in re.findall(r"\w+", term.name) if word.lower() not in prose.lower()]
        assert not missing, f"lesson {term.lesson} doesn't say {term.name}"


def test_lesson_00_explains_its_own_terms_before_it_uses_them() -> None:
    """Its links, below the introduction, lead to what later lessons explain."""
    _, *cells = (cell.source for cell in read_lesson(COURSE / "00_start_here.py").cells if cell.cell_type == "markdown")
    early = [KNOWN[anchor].name for cell in cells for anchor in LINK.findall(cell) if KNOWN[anchor].lesson == "00"]
    assert early == []


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_terms_first_use_is_its_definition_or_a_link(path) -> None:
    before, after = prose_of(path), [c.source for c in read_lesson(path).cells if c.cell_type == "markdown"]
    linked = LINK.findall("\n".join(after))
    assert len(linked) == len(set(linked))
    for term in (each for each in terms() if each.name not in ORDINARY):
        plain = next((text for text in before if any(first_uses(text, term))), "")
        for start, end in list(first_uses(plain, term))[:1]:
            around = plain[max(start - 2, 0) : end + 2]
            inside = any(other != term and term.name in other.name for other in terms())  # "token" in "token budget"
            assert term.anchor in linked or "**" in around or inside, term.name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A slot, two slots.", "A [slot](glossary.md#slot), two slots."),
        ("A **slot** is a place; slots run out.", "A **slot** is a place; slots run out."),
        ("`slot` and a slot", "`slot` and a [slot](glossary.md#slot)"),
        ("## A slot\n\nA slot", "## A slot\n\nA [slot](glossary.md#slot)"),
        ("[a slot](x.md), timeslot", "[a slot](x.md), timeslot"),
        ("<summary>A slot?</summary>\n\nA slot", "<summary>A slot?</summary>\n\nA [slot](glossary.md#slot)"),
        ("the token budget", "the [token budget](glossary.md#token-budget)"),
        ("**Queue** first", '<b style="border-bottom: 3px solid #999999">Queue</b> first'),
    ],
)
def test_only_the_first_use_in_prose_is_linked(text: str, wanted: str) -> None:
    notebook = new_notebook(cells=[new_code_cell("slot"), new_markdown_cell(text), new_markdown_cell("no more")])
    assert [cell.source for cell in with_links(notebook).cells] == ["slot", wanted, "no more"]


def test_a_name_is_matched_as_it_is_written() -> None:
    assert not list(first_uses("a slo request", Term("SLO", "", "01")))
    assert len(list(first_uses("SLOs, SLO", Term("SLO", "", "01")))) == 2

"""The bar above long cells: when it comes, what it says, and that no stored notebook keeps it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from made_ledger import made_ledger

from course.lab import progress_bar
from course.lab.display import Html
from course.lab.marks import TRANSIENT
from course.lab.progress_bar import with_progress


class Screen:
    """What a notebook was told to show."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: list[Any] = []

    def display(self, content: Html, **options: Any) -> "Screen":
        self.lines.append(content.text)
        self.marks.append(options.get("metadata"))
        return self

    update = display


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """As if in a notebook."""
    found = Screen()
    monkeypatch.setattr(progress_bar, "display", found.display)
    monkeypatch.setattr(progress_bar.InteractiveShell, "initialized", lambda: True)
    return found


def test_without_patience_the_bar_is_there_before_the_first_item_is_done(screen: Screen) -> None:
    items = with_progress(["D18", "<A1>"], "measuring", patience_s=0)
    next(items)
    assert screen.lines == ["measuring: D18, 0 of 2 done"]
    next(items)
    assert screen.lines[-1] == "measuring: <A1>, 1 of 2 done"
    assert list(items) == [] and "done" not in screen.lines[-1]
    assert screen.marks == [{TRANSIENT: True}] * 3


def test_what_is_soon_done_shows_no_bar(screen: Screen) -> None:
    seconds = itertools.count(0.0, 0.5)
    assert list(with_progress("ab", "counting", now=lambda: next(seconds))) == ["a", "b"]
    assert screen.lines == []
    assert list(with_progress("abcdef", "counting", now=lambda: next(seconds))) == list("abcdef")
    assert screen.lines[0] == "counting: d, 3 of 6 done"


def test_a_ledger_says_at_once_which_claim_it_measures(screen: Screen, tmp_path: Path) -> None:
    ledger = made_ledger(tmp_path)
    ledger.run("A2")
    assert screen.lines == [], "a panel's thread has no cell to show a bar in"
    ledger.measure("A1")
    assert screen.lines[0] == "measuring claims: A1, 0 of 1 done"

"""A cell that takes long says what it waits for, in one line that no stored notebook keeps."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from made_ledger import made_ledger

from course.lab import build, waiting
from course.lab.marks import EXAMPLE
from course.lab.waiting import CellLine, say, say_run, with_progress


class Screen:
    """What `display` was told, in place of a notebook."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.html = ""

    def display(self, bundle: dict[str, str], **_: object) -> "Screen":
        self.lines.append(bundle["text/plain"])
        self.html = bundle["text/html"]
        return self

    update = display


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    monkeypatch.setattr(waiting, "display", found.display)
    return found


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, screen: Screen) -> Iterator[CellLine]:
    """Of a cell that runs; every look at its clock takes a second."""
    moments = iter(range(100))
    made = CellLine(lambda: float(next(moments)))
    monkeypatch.setattr(waiting, "_now", made)
    yield made
    made.end()


def test_a_cell_has_one_line_however_many_runs_it_plays(screen: Screen, line: CellLine) -> None:
    say_run("chat", is_loading=True)
    line.tell()
    named = say_run("chat", is_loading=False)
    line.tell()
    say(f"{named}: 1 of 2 requests done")
    line.tell()
    line.end()
    line.tell()
    assert screen.lines == [
        "loading the model, once, 1 s",
        "run 2, chat: preparing the engine, 2 s",
        "run 2, chat: 1 of 2 requests done, 3 s",
        "took 4 s, 2 runs on the engine",
    ]


def test_a_short_cell_has_none_and_a_long_one_tells_by_itself(
    screen: Screen, line: CellLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.end()
    assert screen.lines == []
    monkeypatch.setattr(waiting, "REFRESH_S", 0.01)
    told, long = threading.Event(), CellLine()
    monkeypatch.setattr(waiting, "display", lambda bundle, **_: told.set() or screen.display(bundle))
    long.watch()
    assert told.wait(20)
    long.end()


def test_threads_leave_the_line_of_the_cell_alone(line: CellLine) -> None:
    explorer = threading.Thread(target=say_run, args=("chat", True))
    explorer.start()
    explorer.join()
    assert (line.num_runs, line.words) == (0, "running")


def test_a_bar_says_what_is_at_work_and_how_much_is_done(screen: Screen, line: CellLine) -> None:
    for _ in with_progress(["D18", "<A1>"], "measuring"):
        line.tell()
    line.end()
    assert screen.lines[:2] == ["measuring: D18, 0 of 2 done, 1 s", "measuring: <A1>, 1 of 2 done, 2 s"]
    assert screen.lines[-1] == "took 3 s" and "<progress" not in screen.html


def test_a_ledger_says_which_claim_it_measures(line: CellLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "say", lambda words, share=None: said.append(words))
    made_ledger(tmp_path).measure("A1")
    assert said[0] == "measuring claims: A1, 0 of 1 done"


def test_a_cell_that_scores_an_open_prediction_says_so_at_once(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXAMPLE, raising=False)
    names = {"bet": SimpleNamespace(locked=False), "sure": SimpleNamespace(locked=True)}
    code = "eight = lab.run('chat')\nbet.score(grew_most(one, eight))"
    assert waiting._unlocked(code.replace("bet", "sure"), names) == waiting._unlocked("bet", names) == ""
    CellLine(warning=waiting._unlocked(code, names)).end()
    assert "isn't locked" in screen.lines[0] and "isn't locked" in screen.lines[1]


def test_every_cell_of_a_notebook_has_one_and_a_built_notebook_does_not_keep_it(tmp_path: Path) -> None:
    source = tmp_path / "07_example.py"
    source.write_text(
        """# %%
import course.lab
from course.lab import waiting
first = waiting.line_here()
waiting.REFRESH_S = 0.1
# %%
import time
time.sleep(1)
first is not waiting.line_here() is not None, waiting.line_here()._handle is not None
"""
    )
    *_, cell = nbformat.read(build.build(source), as_version=4).cells
    assert [output.data["text/plain"] for output in cell.outputs] == ["(True, True)"]

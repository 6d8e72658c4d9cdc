"""A cell that takes long says what it waits for, in one line that no stored notebook keeps."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from IPython.core.error import InputRejected
from IPython.core.interactiveshell import InteractiveShell
from made_ledger import made_ledger
from made_run import made_run
from patience import PATIENCE_S

from course.lab import build, growing, waiting
from course.lab.controls import FIELDS
from course.lab.display import Html
from course.lab.explorer import Explorer
from course.lab.marks import EXAMPLE
from course.lab.run import Run
from course.lab.view.trace import extended, trace_of
from course.lab.waiting import WaitingLine, say, say_run, telling, with_progress
from course.lab.workloads import LabWorkload, PromptArrival

Told = list[tuple[str, str]]


@pytest.fixture
def screen() -> Told:
    """What it was told to show: HTML, and the same as words."""
    return []


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, screen: Told) -> Iterator[WaitingLine]:
    """The line of a cell that runs; every look at its clock takes a second."""
    moments = iter(range(100))
    made = WaitingLine(lambda *told: screen.append(told), lambda: float(next(moments)))
    monkeypatch.setattr(waiting, "_now", made)
    yield made
    made.end()


def test_a_cell_has_one_line_however_many_runs_it_plays(screen: Told, line: WaitingLine) -> None:
    say_run("chat", is_loading=True)
    line.tell()
    named = say_run("chat", is_loading=False)
    line.tell()
    say(f"{named}: 1 of 2 requests done")
    line.tell()
    line.end()
    line.tell()
    assert [words for _, words in screen] == [
        "loading the model, once, 1 s",
        "run 2, chat: preparing the engine, 2 s",
        "run 2, chat: 1 of 2 requests done, 3 s",
        "took 4 s, 2 runs on the engine",
    ]


def test_a_short_cell_has_none_and_a_long_one_tells_by_itself(
    screen: Told, line: WaitingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.end()
    assert screen == []
    monkeypatch.setattr(waiting, "REFRESH_S", 0.01)
    told = threading.Event()
    with telling(lambda *_: told.set()):
        assert told.wait(PATIENCE_S)


def test_threads_leave_the_line_of_the_cell_alone(line: WaitingLine) -> None:
    explorer = threading.Thread(target=say_run, args=("chat", True))
    explorer.start()
    explorer.join()
    assert (line.num_runs, line.words) == (0, "running")


def test_a_panels_button_says_what_its_thread_is_busy_with(line: WaitingLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REFRESH_S", 0.01)
    told = threading.Event()

    def draw() -> Html:
        say("run 1, chat: 1 of 2 requests done")
        assert told.wait(PATIENCE_S)
        return Html("drawn", "drawn")

    panel = Explorer(draw, button="Send it")
    panel.busy.observe(lambda change: told.set() if "1 of 2" in change["new"] else None, names="value")
    panel.press()
    panel.wait()
    assert panel.error is None and "took" in panel.busy.value and line.words == "running"


def test_a_bar_says_what_is_at_work_and_how_much_is_done(screen: Told, line: WaitingLine) -> None:
    for item in with_progress(["D18", "<A1>"], "measuring"):
        if item == "<A1>":
            say("run 1, chat: preparing the engine")
        line.tell()
    say(waiting.RUNNING)
    line.end()
    assert [words for _, words in screen] == [
        "measuring: D18, 0 of 2 done, 1 s",
        "measuring: <A1>, 1 of 2 done · run 1, chat: preparing the engine, 2 s",
        "took 3 s",
    ]
    assert "<progress" in screen[0][0] and "<progress" not in screen[-1][0]


def test_a_ledger_says_which_claim_it_measures(
    line: WaitingLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ledger = made_ledger(tmp_path)
    monkeypatch.setattr(ledger, "run", lambda _: said.append(line.task))
    ledger.measure("A1")
    assert said == ["measuring claims: A1, 0 of 1 done"] and line.task == ""


def test_a_cell_that_scores_an_open_prediction_says_so_at_once(screen: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXAMPLE, raising=False)
    names = {"bet": SimpleNamespace(locked=False), "sure": SimpleNamespace(locked=True)}
    code = "eight = lab.run('chat')\nbet.score(grew_most(one, eight))"
    assert waiting._unlocked(code.replace("bet", "sure"), names) == waiting._unlocked("bet", names) == ""
    WaitingLine(lambda *told: screen.append(told), warning=waiting._unlocked(code, names)).end()
    assert ["isn't locked" in words for _, words in screen] == [True, True]


def test_every_cell_of_a_notebook_has_one_and_a_built_notebook_does_not_keep_it(tmp_path: Path) -> None:
    source = tmp_path / "07_example.py"
    source.write_text(
        """# %%
import course.lab
from course.lab import waiting
first = waiting.line_here()
waiting.REFRESH_S = 0.1
# %%
import os, time
time.sleep(1)
assert os.environ["MINILLM_EXAMPLE"] == "1"
first is not waiting.line_here() is not None, waiting.line_here()._is_shown
"""
    )
    *_, cell = nbformat.read(build.build(source), as_version=4).cells
    assert [output.data["text/plain"] for output in cell.outputs] == ["(True, True)"]


def test_a_cell_whose_bet_is_missing_stops_before_it_costs_anything() -> None:
    shell = InteractiveShell()
    shell.user_ns["ran"] = []
    shell.ast_transformers.append(waiting.BetFirst(shell.user_ns))
    result = shell.run_cell("ran.append(1)\nmixing.score(2)  # bet.score(")
    assert isinstance(result.error_before_exec, InputRejected) and "mixing" in str(result.error_before_exec)
    assert shell.user_ns["ran"] == []
    shell.run_cell("class Bet:\n    score = ran.append\nmixing = Bet\nmixing.score(2)")
    assert shell.run_cell("mixing.score(3)").success and shell.user_ns["ran"] == [2, 3]


class MadeSession:
    """A run that is looked at twice while it goes on, then has ended; or that has ended before the first look."""

    def __init__(self, is_short: bool = False) -> None:
        self.looks = [] if is_short else [made_run(until=0.1), made_run(until=0.2)]
        self.seen = made_run()

    def wait(self, timeout: float | None = None) -> bool:
        self.seen = self.looks.pop(0) if (is_running := bool(self.looks)) else made_run()
        return not is_running

    def run(self) -> Run:
        return self.seen


MADE = LabWorkload("made", "", tuple(PromptArrival(0.0, "Hi.", 12) for _ in range(8)))


def test_a_run_grows_beside_the_line_and_stays_where_the_cell_shows_nothing(
    line: WaitingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    news: list[dict[str, Any]] = []
    monkeypatch.setattr(growing.GrowingView, "send", lambda _, content: news.append(content))
    line.put = shown.append
    growing.play_out(MadeSession(), MADE, lambda: None)
    told = shown[0].shown["run"]
    for each in news:
        told = extended(told, each["more"])
    assert len(news) == 3 and told == trace_of(made_run(), MADE, FIELDS)
    line.end(shows_nothing=True)
    assert len(shown) == 2 and "Where did each request" in shown[1].svg()


def test_a_short_run_grows_nowhere_and_a_cell_with_a_result_keeps_no_picture(line: WaitingLine) -> None:
    shown: list[Any] = []
    line.put = shown.append
    growing.play_out(MadeSession(is_short=True), MADE, lambda: None)
    assert shown == []
    growing.play_out(MadeSession(), MADE, lambda: None)
    line.end(shows_nothing=False)
    assert len(shown) == 2 and shown[1] is None

"""A cell that plays runs says what it waits for, in one line that no stored notebook keeps."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from course.lab import build, waiting
from course.lab.waiting import WaitingLine
from course.lab.workloads import Arrival, Workload

TRAFFIC = Workload("chat", "", (Arrival(0.0, "a", 1), Arrival(0.0, "b", 1)))


class Screen:
    """What `display` was told, a line a cell; in place of a notebook."""

    def __init__(self) -> None:
        self.cell: str | None = "first"
        self.lines: list[list[str]] = []

    def display(self, bundle: dict[str, str], **_: object) -> "Screen":
        self.lines.append([bundle["text/plain"]])
        return self

    def update(self, bundle: dict[str, str], **_: object) -> None:
        self.lines[-1].append(bundle["text/plain"])


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    monkeypatch.setattr(waiting, "display", found.display)
    main = threading.main_thread()
    monkeypatch.setattr(waiting, "running_cell", lambda: found.cell if threading.current_thread() is main else None)
    return found


@pytest.fixture
def clock() -> Callable[[], float]:
    moments = iter(range(100))
    return lambda: float(next(moments))


def test_a_cell_has_one_line_however_many_runs_it_plays(screen: Screen, clock: Callable[[], float]) -> None:
    line = WaitingLine(clock)
    run = line.begin(TRAFFIC, is_loading=True)
    run.go_on(1)
    run.end()
    line.begin(TRAFFIC, is_loading=False).end()
    assert screen.lines == [
        [
            "loading the model, once: some seconds",
            "run 1, chat: 1 s, 1 of 2 requests done",
            "1 run on the engine, 2 s",
            "run 2, chat: preparing the engine",
            "2 runs on the engine, 4 s",
        ]
    ]


def test_outside_of_a_cell_nothing_is_shown(screen: Screen) -> None:
    screen.cell = None
    run = WaitingLine().begin(TRAFFIC, is_loading=True)
    run.go_on(2)
    run.end()
    assert screen.lines == []


def test_an_explorers_runs_leave_the_line_of_the_cell_alone(screen: Screen, clock: Callable[[], float]) -> None:
    line = WaitingLine(clock)
    with ThreadPoolExecutor(1) as explorer:  # its thread plays, while the main one waits for its turn
        theirs = explorer.submit(line.begin, TRAFFIC, is_loading=False).result()
        ours = line.begin(TRAFFIC, is_loading=False)
        explorer.submit(theirs.go_on, 2).result()
        explorer.submit(theirs.end).result()
        explorer.submit(line.begin, TRAFFIC, is_loading=False).result()
    ours.go_on(1)
    ours.end()
    (said,) = screen.lines
    assert [words.split(":")[0].split(",")[0] for words in said] == ["run 1", "run 1", "1 run on the engine"]
    assert said[1].endswith("1 of 2 requests done")


def test_a_built_notebook_does_not_keep_it(tmp_path: Path) -> None:
    source = tmp_path / "07_example.py"
    source.write_text(
        """# %%
from course.lab.waiting import WaitingLine, running_cell
from course.lab.workloads import Workload

line = WaitingLine()
for _ in range(2):
    line.begin(Workload("chat", "", ()), is_loading=False).end()
running_cell() is not None
"""
    )
    (cell,) = nbformat.read(build.build(source), as_version=4).cells
    assert [output.data["text/plain"] for output in cell.outputs] == ["True"]

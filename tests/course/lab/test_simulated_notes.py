"""A notebook on a simulated device: labels beneath its cells, and notes in place of what can't be had."""

from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from course.lab import lab as lab_module
from course.lab import simulated_notes
from course.lab.simulated_device import SimulatedDevice, SimulatedDeviceError
from course.lab.simulated_notes import NotHere, SimulatedNotebook
from course.lab.workloads import LabWorkload, PromptArrival
from minillm import EngineConfig

DEVICE = SimulatedDevice("h100-sxm", 4)
CONFIG = EngineConfig(model="llama-3-70b")
Cell = Callable[[str], ExecutionResult]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is displayed beneath cells."""
    found: list[str] = []
    monkeypatch.setattr(simulated_notes, "display", lambda html: found.append(str(html)))
    return found


@pytest.fixture
def shell() -> InteractiveShell:
    shell = InteractiveShell()
    shell.user_ns["fail"] = _fail
    return shell


@pytest.fixture
def cell(shell: InteractiveShell, shown: list[str]) -> Cell:
    SimulatedNotebook(shell, DEVICE, CONFIG).watch()
    return shell.run_cell


def _fail() -> None:
    raise SimulatedDeviceError("Reading minds")


def test_what_a_cell_shows_is_labelled_with_its_error_band(cell: Cell, shown: list[str]) -> None:
    cell("6 * 7")
    assert len(shown) == 1 and shown[0].startswith("Simulated: llama-3-70b on 4 x h100-sxm, as the lab was opened;")
    assert DEVICE.error_band(CONFIG).text in shown[0] and "%" in shown[0]


def test_a_cell_that_shows_nothing_is_not(cell: Cell, shown: list[str]) -> None:
    cell("a = 1")
    assert shown == []


def test_a_note_and_no_error(cell: Cell, shown: list[str]) -> None:
    result = cell("before = 1\nminds = fail()\nafter, other = 2, 3")
    assert result.success and [words.partition(" takes")[0] for words in shown] == ["Reading minds"]
    assert cell("before").result == 1


@pytest.mark.parametrize("use", ["minds.read()", "minds[0]", "len(minds)", "2 * minds", "list(minds)", "f'{minds}'"])
def test_a_cell_that_uses_it_says_the_same(cell: Cell, shown: list[str], use: str) -> None:
    cell("minds = fail()")
    assert cell(use).success and len(shown) == 2 and shown[0] == shown[1]


def test_other_errors_stay_errors(cell: Cell, shown: list[str]) -> None:
    assert isinstance(cell("1 / 0").error_in_exec, ZeroDivisionError)


def test_a_second_lab_takes_over(shown: list[str]) -> None:
    shell = InteractiveShell()
    for device in (DEVICE, SimulatedDevice("h200", 2)):
        SimulatedNotebook(shell, device, CONFIG).watch()
    shell.run_cell("1 + 1")
    assert len(shown) == 1 and "on 2 x h200," in shown[0]


def test_a_real_lab_ends_the_labels(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InteractiveShell()
    monkeypatch.setattr(lab_module, "get_ipython", lambda: shell)
    for device in ("h100-sxm", ""):
        monkeypatch.setenv("MINILLM_LAB_DEVICE", device)
        lab_module.open_lab(short=True).close()
        shell.run_cell("1 + 1")
    assert len(shown) == 1


def test_a_run_is_labelled_by_what_it_ran(
    cell: Cell, shell: InteractiveShell, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILLM_LAB_DEVICE", str(DEVICE))
    shell.user_ns["lab"] = lab = lab_module.Lab(short=True)
    shell.user_ns["one"] = LabWorkload("one", "", (PromptArrival(0.0, "Hello", 4),))
    cell("lab.run(one, model='qwen3-8b')")
    lab.close()
    assert len(shown) == 1 and shown[0].startswith("Simulated: qwen3-8b on 4 x h100-sxm;")


def test_what_is_not_here_is_no_other_thing() -> None:
    missing = NotHere(SimulatedDeviceError("Reading minds"))
    with pytest.raises(AttributeError):
        _ = missing._repr_html_
    with pytest.raises(SimulatedDeviceError):
        bool(missing)

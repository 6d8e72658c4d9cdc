"""A notebook on a simulated device: labels beneath its cells, and notes in place of what can't be had."""

from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from made_run import made_run

from course.grading import Checks, choice
from course.lab import lab as lab_module
from course.lab import notes, simulated_70b
from course.lab.notes import NotHere, names_set_by
from course.lab.services_70b import ServiceFigures
from course.lab.simulated_device import SimulatedDevice, SimulatedDeviceError
from course.lab.simulated_notes import SimulatedNotebook
from course.lab.workloads import LabWorkload, PromptArrival
from minillm import EngineConfig

DEVICE = SimulatedDevice("h100-sxm", 4)
CONFIG = EngineConfig(model="llama-3-70b")
Cell = Callable[[str], ExecutionResult]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is displayed beneath cells."""
    found: list[str] = []
    monkeypatch.setattr(notes, "display", lambda html: found.append(str(html)))
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


def test_an_answer_that_was_checked_is_not_simulated(cell: Cell, shell: InteractiveShell, shown: list[str]) -> None:
    shell.user_ns["check"] = Checks({"q1": lambda answer: choice(answer, "queue", {"queue": "it is"})})
    assert cell("check('q1', 'queue')").result.score == 1 and shown == []


@pytest.mark.parametrize(
    ("code", "is_labelled"),
    [
        ("fleet.capacity.__name__", False),
        ("len(at_70b)", False),
        ("len(runs)", True),
        ("[len(runs), len(at_70b)]", True),
        ("6 * 7", True),
        ("%precision 3", True),
    ],
)
def test_what_another_simulation_showed_is_not_put_down_to_the_labs_device(
    cell: Cell, shell: InteractiveShell, shown: list[str], code: str, is_labelled: bool
) -> None:
    figures = {"as they are": {"A": ServiceFigures(1.0, 0.5, 0.01, 0.02)}}
    shell.user_ns |= {"fleet": simulated_70b, "at_70b": figures, "runs": {"one": [made_run(num_requests=1)]}}
    cell(code)
    assert bool(shown) == is_labelled


def test_a_note_and_no_error(cell: Cell, shown: list[str]) -> None:
    result = cell("before = 1\nminds = fail()\nafter, other = 2, 3")
    assert result.success and [words.partition(" takes")[0] for words in shown] == ["Reading minds"]
    assert cell("before").result == 1


@pytest.mark.parametrize("use", ["minds.read()", "minds[0]", "len(minds)", "2 * minds", "list(minds)", "f'{minds}'"])
def test_a_cell_that_uses_it_says_the_same(cell: Cell, shown: list[str], use: str) -> None:
    cell("minds = fail()")
    assert cell(use).success and len(shown) == 2 and shown[0] == shown[1]


def test_a_value_from_before_is_not_used_in_place_of_one_that_is_not_here(cell: Cell, shown: list[str]) -> None:
    cell("scores = kept = [1, 2]")
    cell("kept = [3]\nscores = fail()")
    assert cell("sum(scores)").success and shown[0] == shown[1] and "Reading minds" in shown[1]
    assert cell("kept").result == [3]


@pytest.mark.parametrize("line", ["%precision 3", "!true", "listed = !true", "%time 1 + 1"])
def test_a_cell_with_a_magic_is_no_other(cell: Cell, shown: list[str], line: str) -> None:
    cell(f"{line}\nminds = fail()")
    assert cell("minds.read()").success and len(shown) == 2 and shown[0] == shown[1]


def test_names_of_a_cell_are_those_of_its_top_level() -> None:
    inner = "def f():\n    hidden = 1\nsquares = [item * item for item in range(3)]\n"
    assert names_set_by(f"{inner}for i in squares:\n    a, (b, *c) = fail()\n    d = b") == set("abcdi") | {"squares"}
    assert names_set_by("a = 1\nb = [\n1,\n2]\nc = 3", since=3) == {"b", "c"}
    assert names_set_by("no Python") == set()


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

"""Lessons' explorers as a tab draws them: with nothing but what travels there, the notebooks' own pictures."""

import importlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pydantic
import pytest

from course.lab.recording import all_stops
from course.tab import files
from course.tab.absent import AbsentError, StandIn
from course.tab.answer import Answers
from course.tab.explorers import LIVE

COSTLY = ("orders", "queue_limits", "tenants_explorer", "pool_too_small", "knee_of_70b", "alarms", "spikes", "mends")
COSTLY += ("prices_per_token",)
"""They simulate for a second or so."""
ASK = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from course.tab.explorers import TabExplorer
drawn = {}
for place in json.load(sys.stdin):
    explorer = TabExplorer(place)
    drawn[place] = explorer.draw([control["start"] for control in explorer.controls()])
json.dump([drawn, sorted(sys.modules)], sys.stdout)
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources that travel, and one with the packages of the wheels."""
    folder = tmp_path_factory.mktemp("tab")
    zipfile.ZipFile(io.BytesIO(files.course_archive())).extractall(folder / "course")
    (folder / "wheels").mkdir()
    installed = Path(pydantic.__file__).parents[1]
    for name in (wheel.replace("-", "_") for wheel in files.WHEELS):
        found = next(path for path in (installed / name, installed / f"{name}.py") if path.exists())
        os.symlink(found, folder / "wheels" / found.name)
    return folder


def drawn_in(tab: Path, places: list[str]) -> dict[str, str]:
    """By place: the picture where its controls start. No other package is to be had there."""
    home = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"MINILLM_HOME": str(tab)}
    command = [sys.executable, "-S", "-c", ASK, str(tab / "course"), str(tab / "wheels")]
    done = subprocess.run(command, input=json.dumps(places), capture_output=True, text=True, env=home, cwd=tab)
    assert done.returncode == 0, done.stderr
    drawn, modules = json.loads(done.stdout)
    assert not {"torch", "numpy", "IPython", "ipywidgets"} & set(modules)
    return drawn


def drawn_here(place: str) -> str:
    """The same picture as a notebook without matplotlib draws it."""
    module, _, name = place.partition(":")
    explorer = getattr(importlib.import_module(f"course.lessons.{module}"), name)()
    return explorer.drawn_at(**explorer.values)


@pytest.mark.parametrize("is_costly", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_tab_draws_what_a_notebook_draws(tab: Path, is_costly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.lab.pictures.chart.importlib.util.find_spec", lambda name: None)
    places = [place for place in LIVE if (place.partition(":")[2] in COSTLY) == is_costly]
    for place, picture in drawn_in(tab, places).items():
        assert picture == drawn_here(place), place


def ask(answers: Answers, asked: str, of: int | None = None, **given: object) -> dict[str, object]:
    return json.loads(answers.answer(json.dumps({"name": asked, "given": given, "of": of})))


def test_a_page_puts_controls_to_places_and_asks_for_nothing_else() -> None:
    answers = Answers()
    given = {"place": "lesson_06.simulated:step_parts", "given": ["Qwen3 30B-A3B (MoE)"]}
    number = ask(answers, "explorer.open", **given)["value"]
    controls = ask(answers, "explorer.controls", number)["value"]
    at = [control["start"] for control in controls]
    from course.lessons.lesson_06.simulated import step_parts

    here = step_parts("Qwen3 30B-A3B (MoE)")
    assert [len(control["stops"]) for control in controls] == [len(each) for each in all_stops(here.controls).values()]
    assert ask(answers, "explorer.draw", number, at=at)["value"] == here.drawn_at(**here.values)
    at[-1] = 0
    first = next(iter(reversed(all_stops(here.controls).values())))[0]
    last = list(here.controls)[-1]
    assert ask(answers, "explorer.draw", number, at=at)["value"] == here.drawn_at(**here.values | {last: first})
    assert "isn't drawn" in ask(answers, "explorer.open", place="os:system", given=["true"])["refused"]


def test_a_stand_in_can_be_imported_from_and_is_no_value() -> None:
    torch = StandIn("torch")

    @torch.inference_mode()
    def annotated(x: "torch.Tensor | None" = None) -> None: ...

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        weight: torch.Tensor | None  # type: ignore[name-defined]

    assert isinstance(Layer(), Layer) and torch.float32 is torch.float32
    for use in (float, str, bool, len, list, "{}".format, lambda x: x < 1):
        with pytest.raises(AbsentError, match=r"torch\.tensor"):
            use(torch.tensor([1]) + 1)

"""Notebooks are built from their sources, and drift is noticed."""

import base64
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest
from made_run import made_run
from nbformat import NotebookNode

from course.lab import build, json_store
from course.lab.frozen import WIDGET_VIEW, freeze
from course.lab.pictures.timeline import draw_timeline

SOURCE = """# %% [markdown]
# # A lesson

# %%
from IPython.display import HTML

HTML('<p>a picture</p><svg viewBox="0 0 10 20" width="100%" aria-label="one line" xmlns="http://www.w3.org/2000/svg"></svg>')
"""


@pytest.fixture
def lesson(tmp_path: Path) -> Path:
    path = tmp_path / "07_example.py"
    path.write_text(SOURCE)
    return path


def test_a_built_notebook_is_executed_frozen_and_up_to_date(lesson: Path) -> None:
    target = build.build(lesson)
    assert build.problems(lesson) == []
    html = nbformat.read(target, as_version=4).cells[1].outputs[0].data["text/html"]
    assert "<p>a picture</p><img " in html
    assert "<svg" not in html
    first = target.read_text()
    build.build(lesson)
    assert target.read_text() == first  # nothing volatile in it


def test_a_build_is_not_taken_for_the_learners_notebook_that_it_was_started_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "course/06_decode.ipynb")
    assert build.main(["no lesson begins so"]) == 0
    assert json_store.notebook() is None


def test_drift_is_noticed(lesson: Path) -> None:
    assert build.problems(lesson) == ["07_example.ipynb is missing"]
    nbformat.write(build.read_source(lesson), lesson.with_suffix(".ipynb"))
    assert build.problems(lesson) == ["07_example.ipynb: cell-01 was not executed"]
    lesson.write_text(SOURCE.replace("A lesson", "Another"))
    assert build.problems(lesson) == ["07_example.ipynb differs from 07_example.py"]


def test_an_error_in_a_notebook_is_noticed(lesson: Path) -> None:
    notebook = build.read_source(lesson)
    notebook.cells[1].execution_count = 1
    notebook.cells[1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    nbformat.write(notebook, lesson.with_suffix(".ipynb"))
    assert build.problems(lesson) == ["07_example.ipynb: cell-01 ended in an error"]


def test_no_output_names_a_folder_of_the_machine_it_was_made_on(home: Path) -> None:
    output = nbformat.v4.new_output("stream", text=f"in {home / 'ledger'}, by {nbformat.__file__}")
    assert build.without_folders(output)["text"] == "in ~/.cache/minillm/ledger, by site-packages/nbformat/__init__.py"
    for path in [*build.COURSE.glob("*.ipynb"), *(build.COURSE.parent / "solutions").glob("*.ipynb")]:
        outputs = [cell.get("outputs", []) for cell in nbformat.read(path, 4).cells]
        assert not re.search(r"[\s\"'(]/(home|root|tmp|work|Users)/\w", str(outputs)), path


def test_frozen_pictures_are_valid_images_with_alternative_text() -> None:
    picture = draw_timeline(made_run())
    output = NotebookNode(data=NotebookNode({"text/html": picture.svg(), WIDGET_VIEW: {}}))
    data = freeze(output)["data"]
    assert list(data) == ["text/html"]
    encoded = re.search(r"base64,([^\"]+)", data["text/html"]).group(1)
    root = ET.fromstring(base64.b64decode(encoded))
    assert root.get("width") == "720"
    assert 'alt="Where did' in data["text/html"]


def test_cells_of_lessons_are_short() -> None:
    for path in build.sources():
        for cell in build.read_source(path).cells:
            if cell.cell_type == "code":
                assert len(cell.source.splitlines()) <= 12, f"{path.name}: {cell.source}"


def test_check_reports_by_its_exit_status(lesson: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(build, "sources", lambda prefix="": [lesson])
    assert build.main(["--check"]) == 1
    assert "missing" in capsys.readouterr().err


def test_a_lesson_ends_with_where_to_go_next() -> None:
    lessons = build.lesson_sources()
    for lesson, following in itertools.pairwise(lessons):
        assert f"]({following.stem}.ipynb)**" in build.read_source(lesson).cells[-1].source
    assert "(../exercises/02_queue.ipynb)" in build.read_source(lessons[3]).cells[-1].source
    assert build.read_source(lessons[-1]).cells[-1].source.endswith("(start.ipynb)")

"""Every lesson in a real browser: all cells run, nothing fails, nothing is blank. And exercises, failed and passed."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from course.lab.build import COURSE, sources

from .conftest import CELLS, REPOSITORY, Open, close, code_cells, run_all

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

SHOWN = """index => {
    const area = window.jupyterapp.shell.currentWidget.content.widgets[index].outputArea;
    const told = area.widgets.filter((_, i) => area.model.get(i).data["text/html"] !== "");
    return told.map(({ node }) =>
        node.innerText.trim().length + node.querySelectorAll("svg, img, input, button, select, canvas").length);
}"""
"""How much there is to see in each output of a cell that is in the page. An output without text is a place on purpose:
there a run grew, and made room for the cell's result (course/lab/waiting.py)."""


def committed_outputs(path: Path) -> list[bool]:
    """For each code cell, whether it has something to show."""
    cells = nbformat.read(path, as_version=4).cells
    return [bool(cell.outputs) for cell in cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_a_lesson_runs_without_an_error_and_shows_what_it_should(open_notebook: Open, path: Path) -> None:
    page = open_notebook(f"{COURSE.name}/{path.stem}.ipynb")
    run_all(page)
    cells = code_cells(page)
    errors = [
        (cell["source"][:80], output)
        for cell in cells
        for output in cell["outputs"]
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]
    assert errors == []
    silent = [
        cell["source"]
        for cell, has_output in zip(cells, committed_outputs(path.with_suffix(".ipynb")), strict=True)
        if has_output and not cell["outputs"]
    ]
    assert silent == []
    assert blank_cells(page) == []
    close(page)


def blank_cells(page: Any) -> list[str]:
    """Cells one of whose outputs has nothing to see, each scrolled into sight."""
    blank = []
    kinds = page.evaluate(f"() => ({CELLS}).map(cell => cell.type === 'code' && cell.outputs.length > 0)")
    for index, has_outputs in enumerate(kinds):
        if has_outputs:
            page.evaluate(f"() => window.jupyterapp.shell.currentWidget.content.scrollToItem({index}, 'start')")
            page.wait_for_timeout(150)
            if 0 in page.evaluate(SHOWN, index):
                page.wait_for_timeout(2000)  # a widget takes a moment to be drawn
                if 0 in page.evaluate(SHOWN, index):
                    blank.append(page.evaluate(f"() => ({CELLS})[{index}].sharedModel.source"))
    return blank


def exercises() -> list[Path]:
    return sorted((REPOSITORY / "exercises").glob("*.ipynb"))


@pytest.mark.parametrize("path", exercises(), ids=lambda path: path.stem)
def test_an_exercise_fails_while_it_is_a_stub_and_passes_when_it_is_solved(open_notebook: Open, path: Path) -> None:
    for folder, is_solved in (("exercises", False), ("solutions", True)):
        page = open_notebook(f"{folder}/{path.name}")
        run_all(page)
        checks = [cell for cell in code_cells(page) if cell["source"].lstrip().startswith("check(")]
        assert checks
        for cell in checks:
            shown = "".join(str(output.get("data", output)) for output in cell["outputs"])
            assert ("✗" not in shown and "◐" not in shown and "✓" in shown) == is_solved, cell["source"]
        close(page)

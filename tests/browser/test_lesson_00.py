"""Lesson 00 as a learner meets it: JupyterLab in a real browser, run all cells, flip a toggle, press Run."""

from typing import Any

import pytest

from .conftest import CELLS, Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DASHBOARD_CELL = "cell => cell.sharedModel.source.includes('Dashboard(lab')"


@pytest.fixture(scope="module")
def page(open_notebook: Open) -> Any:
    """The lesson open in a browser, all cells run."""
    opened = open_notebook("course/00_start_here.ipynb")
    opened.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    return opened


def _dashboard(page: Any) -> Any:
    """The live dashboard: the box around its Run button and its picture. Scrolls there: the page holds only
    the cells in sight."""
    page.wait_for_function(f"() => ({CELLS}).find(({DASHBOARD_CELL}))?.executionCount")
    index = page.evaluate(f"() => ({CELLS}).findIndex({DASHBOARD_CELL})")
    page.evaluate(f"() => window.jupyterapp.shell.currentWidget.content.scrollToItem({index}, 'start')")
    return page.locator(".widget-vbox").filter(has=page.locator("button", has_text="Reset")).first


def _run(page: Any) -> str:
    """Press Run, wait for the end, return the drawn pictures."""
    dashboard = _dashboard(page)
    dashboard.locator("button", has_text="Run").click()
    dashboard.locator("button", has_text="Stop").and_(page.locator(":enabled")).wait_for()
    dashboard.locator("button", has_text="Run").and_(page.locator(":enabled")).wait_for()
    return "".join(dashboard.locator("svg").evaluate_all("all => all.map(one => one.outerHTML)"))


def test_flipping_a_toggle_and_running_changes_the_picture(page: Any) -> None:
    dashboard = _dashboard(page)
    first = _run(page)
    assert "Where did each request" in first
    assert "previous run" not in first
    dashboard.get_by_label("prefix caching").uncheck()
    second = _run(page)
    assert second != first
    assert "previous run" in second

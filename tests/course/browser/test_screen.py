"""What a reader touches, in JupyterLab in a real browser: noise, a reopened notebook, the keyboard, accessibility."""

import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from nbformat.v4 import new_code_cell, new_notebook

from .conftest import PATIENCE_MS, REPOSITORY, Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FILE = "course/screen.ipynb"
CODE = (
    "from course.lab import Dashboard, open_lab",
    'dashboard = Dashboard(open_lab(), "chat")\ndashboard',
    "from course.incidents import Incident\nfrom course.incidents.desk import IncidentDesk",
    "IncidentDesk(Incident.generate(seed=1))",
    "import time\ntime.sleep(2.5)",
    'open_lab().predict("arrows", "Which?", ["queue", "prefill"])',
)
READY = "button.widget-button:enabled:has-text('Run')"
NAMED = "document.activeElement.closest('.jupyter-widgets')?.textContent.replace('\u200b', '').trim().slice(0, 5)"
FRAMES = """async ([pictures, patience_ms]) => {
    const seen = new Set(), began = performance.now();
    let last = began, longest = 0;
    while (seen.size < pictures && performance.now() - began < patience_ms) {
        await new Promise(requestAnimationFrame);
        const widths = [...document.querySelectorAll('svg [data-grow]')].map(each => each.getAttribute('width')).join();
        if (widths && !seen.has(widths)) {
            seen.add(widths);
            longest = Math.max(longest, performance.now() - last);
            last = performance.now();
        }
    }
    return [seen.size, 1000 * seen.size / (last - began), longest];
}"""
"""Looks until so many different pictures were there: how many, how many a second, and the longest wait for one, ms."""
PICTURES = 6
"""A run that draws fewer than that shows its end and not its course."""


COPIES = runpy.run_path(str(REPOSITORY / "binder/copies.py"))
ROOM = """() => {
    const page = document.querySelector('.jp-WindowedPanel-outer').getBoundingClientRect();
    const dashboard = document.querySelector('.mm-strip').parentElement.getBoundingClientRect();
    return [page.height - dashboard.height, page.right - dashboard.right];
}"""
"""What is left of the notebook's own part of the screen, below the dashboard and beside it."""


@pytest.fixture(scope="module")
def page(open_notebook: Open, root: Path) -> Any:
    """A notebook with a dashboard and a desk, all cells run."""
    notebook = new_notebook(cells=[new_code_cell(code) for code in CODE])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, root / FILE)
    opened = open_notebook(FILE)
    opened.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    opened.wait_for_selector("button:has-text('Lock')")  # of the last cell: none is left to run
    return opened


def test_it_draws_picture_after_picture_while_the_engine_works(page: Any) -> None:
    page.get_by_label("traffic").select_option("long document")
    page.click(READY)
    page.wait_for_selector("svg [data-grow]", state="attached")
    seen, rate, longest_ms = page.evaluate(FRAMES, [PICTURES, PATIENCE_MS])
    print(f"{rate:.1f} pictures a second, the longest wait for one {longest_ms:.0f} ms")  # of this machine: pytest -s
    assert seen >= PICTURES
    page.wait_for_selector(READY)


def test_two_equal_runs_are_called_noise_and_a_change_is_named(page: Any) -> None:
    page.click(READY)
    page.wait_for_selector("text=nothing changed")
    page.wait_for_selector(READY)
    page.get_by_label("slots").select_option("2")
    page.click(READY)
    page.wait_for_selector("text=changed: slots 4 → 2")
    page.wait_for_selector("text=thin outline: previous run")
    page.wait_for_selector(READY)


def test_a_dashboard_after_two_runs_is_on_one_screen(page: Any) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_timeout(500)  # so that what is seen is not the old layout
    page.wait_for_function(f"() => Math.min(...({ROOM})()) >= 0")


def test_a_cell_that_takes_long_says_so_and_for_how_long(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 4")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(4, 'start')")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell') }")  # doesn't wait for its end
    page.wait_for_selector("text=/^running, \\d+ s$/")
    page.wait_for_selector("text=/^took \\d.* s$/")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_the_keyboard_alone_runs_it_and_reaches_every_control(page: Any) -> None:
    page.locator(READY).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("button.widget-button:enabled:has-text('Stop')")
    page.wait_for_selector(READY)
    page.locator(READY).focus()
    reached = set()
    for _ in range(22):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(NAMED))
    assert {"Pin", "Reset", "slots", "KV bl", "prefi"} <= reached


def test_the_arrow_keys_are_a_bets_own(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 5")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(5, 'start')")
    options = page.locator(".widget-radio-box input[name]")
    options.first.press("Space")
    options.first.press("ArrowDown")
    assert options.nth(1).is_checked()
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_controls_and_pictures_explain_themselves_on_hover(page: Any) -> None:
    titles = page.locator(".mm-strip > *").evaluate_all("all => all.map(each => each.title)")
    assert len(titles) > 10 and all(titles)
    page.locator("svg [data-request] rect").first.hover(force=True)
    page.wait_for_selector("[role=status]:has-text('prompt tokens')")


def test_axe_finds_nothing_serious(page: Any) -> None:
    found = Axe().run(page, context=".widget-vbox").response["violations"]
    serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, found


def test_a_blank_commit_is_refused(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(3, 'start')")
    page.get_by_placeholder("What do you think it is").fill("too few slots")
    page.locator("button", has_text="Write it down").click()
    commit = page.locator("button", has_text="Commit to this")
    commit.click()
    page.wait_for_selector("text=dominant")
    assert commit.is_enabled()


def test_a_notebook_that_is_closed_and_opened_again_keeps_its_pictures(page: Any, open_notebook: Open) -> None:
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    again = open_notebook(FILE)
    again.wait_for_selector("svg[role=img]")
    assert again.locator("text=Error displaying widget").count() == 0
    again.wait_for_selector("text=From an earlier session")
    icons = "all => all.filter(each => getComputedStyle(each, '::before').display !== 'none').length"
    assert again.locator(".jupyter-widgets-disconnected").evaluate_all(icons) == 0, "broken links, one a widget"


def test_a_lesson_opens_unchanged_and_its_numbers_are_marked_as_an_example(open_notebook: Open, root: Path) -> None:
    lesson = root / "course/00_start_here.ipynb"
    lesson.write_text(COPIES["as_example"](lesson.read_text(encoding="utf-8")), encoding="utf-8")
    opened = open_notebook("course/00_start_here.ipynb")
    opened.wait_for_selector("text=Example run, on 2 cores")
    opened.wait_for_timeout(2000)
    assert not opened.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty")

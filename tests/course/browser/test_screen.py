"""What a reader touches, in JupyterLab in a real browser: noise, a reopened notebook, the keyboard, accessibility."""

import itertools
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from nbformat.v4 import new_code_cell, new_notebook

from course.drills.amounts import SECONDS
from course.napkin.library import napkin_of

from .conftest import REPOSITORY, Open, close

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FILE = "course/screen.ipynb"
SUM_IN_SECONDS = next(seed for seed in itertools.count() if napkin_of(seed).answer.unit == SECONDS)
LAB = "from course.lab import Dashboard, open_lab"
DASHBOARD = 'dashboard = Dashboard(open_lab(), "chat")\ndashboard'
BET = 'open_lab().predict("arrows", "Which?", ["queue", "prefill"])'
CODE = (
    LAB,
    DASHBOARD,
    "from course.incidents import Incident\nfrom course.incidents.desk import IncidentDesk",
    "IncidentDesk(Incident.generate(seed=1))",
    "import time\ntime.sleep(2.5)",
    "from course.lab.explorer import Explorer, buttons, choices, slider\nfrom course.lab.display import Html",
    "Explorer(lambda **at: Html(f'<p>{at}</p>', ''), k=slider('drafts', 0, 8, 4), kl=choices('KL', (0.1, 0.2, 0.5)),"
    " card=buttons('card', ('H100', 'B200')))",
    f"from course.napkin.desk import NapkinDesk\nNapkinDesk({SUM_IN_SECONDS})",
    BET,
)
READY = ".mm-bar .mm-run:enabled"
LIVE, STILL = (f".mm-dash[data-mode={mode}]" for mode in ("live", "still"))
NAMED = "document.activeElement.ariaLabel || document.activeElement.textContent.slice(0, 20)"
PICTURES = """async () => {
    const dashboard = document.querySelector('.mm-dash'), first = Number(dashboard.dataset.drawn);
    while (dashboard.dataset.mode === 'live') await new Promise(requestAnimationFrame);
    return Number(dashboard.dataset.drawn) - first;
}"""
"""Looks until the run is over: how many pictures were drawn. A slow machine draws fewer a second, and runs longer."""
FEWEST = 30


COPIES = runpy.run_path(str(REPOSITORY / "binder/copies.py"))
ROOM = """() => {
    const page = document.querySelector('.jp-WindowedPanel-outer').getBoundingClientRect();
    const dashboard = document.querySelector('.mm-dash').getBoundingClientRect();
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


def play(page: Any) -> None:
    """One run, to its end."""
    page.wait_for_selector(STILL)
    page.click(READY)
    page.wait_for_selector(LIVE)
    page.wait_for_selector(STILL)
    page.wait_for_selector(READY)


def test_it_opens_with_a_run_that_plays_by_itself_and_ends_full(page: Any) -> None:
    page.wait_for_selector(STILL)
    assert "recorded run" in page.inner_text(".mm-status")
    assert page.get_by_label("Moment").input_value() == "1000"


def test_it_draws_picture_after_picture_while_the_engine_works(page: Any) -> None:
    page.get_by_role("radio", name="long document").click()
    page.click(READY)
    page.wait_for_selector(LIVE)
    pictures = page.evaluate(PICTURES)
    print(f"{pictures} pictures of one run")  # pytest -s shows it
    assert pictures >= FEWEST
    page.wait_for_selector(STILL)


def test_two_equal_runs_are_called_noise_and_a_change_is_named(page: Any) -> None:
    play(page)
    play(page)
    page.wait_for_selector("text=nothing changed")
    slots = page.get_by_role("spinbutton", name="slots")
    slots.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    play(page)
    page.wait_for_selector("text=changed: slots 4 → 2")
    page.get_by_role("button", name="slots: back to 4").click()
    assert slots.get_attribute("aria-valuetext") == "4"


@pytest.mark.parametrize(("wide", "high"), [(1440, 900), (1280, 720)])
def test_a_dashboard_after_two_runs_is_on_one_screen(page: Any, wide: int, high: int) -> None:
    page.set_viewport_size({"width": wide, "height": high})
    page.wait_for_timeout(500)  # so that what is seen is not the old layout
    page.wait_for_function(f"() => Math.min(...({ROOM})()) >= 0")


def test_a_bet_is_asked_both_runs_are_made_and_it_is_decided(page: Any) -> None:
    page.get_by_role("button", name="burst: more slots").click()
    page.get_by_role("button", name="Lock it, and run both").click()
    page.wait_for_selector("text=Choose an answer first")
    page.locator(".mm-bet").get_by_role("radio", name="queue").click()
    page.get_by_role("button", name="Lock it, and run both").press("Enter")
    page.wait_for_selector(".mm-why:focus")  # the focus goes on to where it's told how it ended
    page.wait_for_selector(".mm-why:has-text('You said queue')")
    assert page.inner_text(".mm-other .mm-who") == "A"


def test_a_cell_that_takes_long_says_so_and_for_how_long(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 4")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(4, 'start')")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell') }")  # doesn't wait for its end
    page.wait_for_selector("text=/^running, \\d+ s$/")
    page.wait_for_selector("text=/^took \\d.* s$/")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_the_keyboard_alone_runs_it_and_reaches_every_control(page: Any) -> None:
    page.wait_for_selector(STILL)
    page.locator(READY).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(LIVE)
    page.wait_for_selector(STILL)
    page.locator(READY).focus()
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(NAMED))
    assert {"Pin", "Reset", "slots", "KV blocks", "prefix caching", "burst: more slots", "Moment"} <= reached


def test_the_arrow_keys_are_a_bets_own(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 8")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(8, 'start')")
    options = page.locator(".widget-radio-box input[name]")
    options.first.press("Space")
    options.first.press("ArrowDown")
    assert options.nth(1).is_checked()
    assert page.get_by_role("radiogroup", name="Predict. Which?").count() == 1
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_an_explorers_controls_have_names_and_what_they_change_is_said(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(6, 'start')")
    page.get_by_role("slider", name="drafts").focus()
    page.keyboard.press("Tab")  # on to its number, which can be typed over
    page.wait_for_selector("[role=textbox][aria-label^=drafts]:focus")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".mm-spoken:has-text(\"'k': 4, 'kl': 0.2\")", state="attached")
    page.wait_for_selector("[role=slider][aria-label=KL][aria-valuetext='0.2']:focus")
    other = page.get_by_role("group", name="card").get_by_role("button", name="B200")
    assert other.get_attribute("aria-pressed") == "false"
    other.press("Enter")
    page.wait_for_selector("button[aria-pressed=true]:has-text('B200')")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_enter_answers_with_all_that_was_typed(page: Any) -> None:
    """However fast: a message about Enter would overtake the last letters."""
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(7, 'start')")
    page.get_by_role("button", name="Start a minute").press("Enter")
    number = page.locator(".mm-enter input[type=text]:focus")
    number.wait_for()
    page.keyboard.type("12345")
    page.keyboard.press("Enter")
    page.wait_for_selector(".mm-shown:has-text(\"'12345' has none\")")
    assert page.get_by_role("combobox", name="unit").count() == 1
    page.keyboard.type(" s")
    page.keyboard.press("Enter")
    page.wait_for_selector(".mm-enter input:disabled")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(1, 'start')")


def test_controls_explain_themselves_and_a_moment_can_be_looked_at_and_frozen(page: Any) -> None:
    titles = page.locator(".mm-control").evaluate_all("all => all.map(each => each.title)")
    assert len(titles) > 10 and all(titles)
    timeline = page.locator(".mm-timeline")
    timeline.hover(position={"x": 150, "y": 20})
    page.wait_for_selector(".mm-why:has-text('At ')")
    timeline.click(position={"x": 150, "y": 20})
    page.mouse.move(0, 0)
    page.wait_for_selector(".mm-dash[data-mode=frozen]")
    page.wait_for_selector(".mm-title:has-text('KV blocks now')")
    timeline.focus()
    page.get_by_label("Moment").press("Escape")
    page.wait_for_selector(STILL)


def test_axe_finds_nothing_serious(page: Any) -> None:
    found = Axe().run(page, context=".jp-OutputArea-output").response["violations"]
    serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, found


def test_a_blank_commit_is_refused(page: Any) -> None:
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(3, 'start')")
    page.get_by_role("tab", name="Diagnose").click()
    page.get_by_label("What you suspect").fill("too few slots")
    page.get_by_role("button", name="Write it down, and see the menus").click()
    commit = page.get_by_role("button", name="Commit to this")
    commit.click()
    page.wait_for_selector(".mm-refused:has-text('this one is blank')")
    assert commit.is_enabled()


def test_a_notebook_that_is_closed_and_opened_again_keeps_its_pictures(page: Any, open_notebook: Open) -> None:
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    again = open_notebook(FILE)
    again.wait_for_selector(".mm-dash canvas[role=img]")
    assert again.locator("text=Error displaying widget").count() == 0
    again.wait_for_selector("text=From an earlier session")
    icons = "all => all.filter(each => getComputedStyle(each, '::before').display !== 'none').length"
    assert again.locator(".jupyter-widgets-disconnected").evaluate_all(icons) == 0, "broken links, one a widget"


def test_a_run_grows_in_its_cell_and_after_a_restart_all_last_frames_are_saved(open_notebook: Open, root: Path) -> None:
    """Its kernel is restarted in mid-run: a bet, a dashboard, and a run that never ended."""
    cells = [new_code_cell(code) for code in (LAB, DASHBOARD, BET, 'dashboard.lab.run("long document")')]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), root / "course/frames.ipynb")
    page = open_notebook("course/frames.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_selector(".mm-growing canvas[aria-label*='requests as of']")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    close(page)
    again = open_notebook("course/frames.ipynb")
    for cell, seen in (
        (1, ".mm-dash:not(.mm-growing) img.mm-timeline"),
        (2, ".widget-radio-box input"),
        (3, ".mm-growing img"),
    ):
        again.evaluate(f"window.jupyterapp.shell.currentWidget.content.scrollToItem({cell}, 'start')")
        again.wait_for_selector(seen)
    assert again.locator("text=From an earlier session").count() >= 1
    assert again.locator("text=Error displaying widget").count() == 0


def test_a_lesson_opens_unchanged_and_its_numbers_are_marked_as_an_example(open_notebook: Open, root: Path) -> None:
    lesson = root / "course/00_start_here.ipynb"
    lesson.write_text(COPIES["as_example"](lesson.read_text(encoding="utf-8")), encoding="utf-8")
    opened = open_notebook("course/00_start_here.ipynb")
    opened.wait_for_selector("text=Example run, on 2 cores")
    opened.wait_for_timeout(2000)
    assert not opened.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty")

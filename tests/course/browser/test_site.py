"""The static site in a real browser, opened from files: bets, explorers, the calculator."""

import random
from pathlib import Path
from typing import Any

import pytest
from browser.pages import SERIOUS, assert_clean, assert_fits
from browser.pages import opened as opened_page
from made_run import made_run

from course.lab.controls import FIELDS
from course.lab.noise import figures
from course.lab.predict import MeasuredAnswer, Prediction
from course.lab.view.trace import trace_of
from course.tab import calculator

pytestmark = pytest.mark.browser
AXED = {
    "light": ("index", "guide_2am", "map", "11c_money", "14_claims_ledger"),
    "dark": ("index", "calculator", "incidents_to_play", "drills", "02_queue", "rounds"),
}
"""Pages by theme. They share one stylesheet, so that each need not be looked at in both."""


def opened(browser: Any, path: Path, told: list[str], **options: Any) -> Any:
    return opened_page(browser, path.as_uri(), told, **options)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page_opens_in_silence_and_fits_a_phone(browser: Any, site: Path, every: int) -> None:
    """Drills, exercises and rounds have pages of one form each: every tenth opens here, and all in the slow tests."""
    told: list[str] = []
    page = opened(browser, site / "index.html", told, viewport={"width": 360, "height": 780})
    pages = [path for path in sorted(site.glob("*.html")) if 'http-equiv="refresh"' not in path.read_text()]
    of_one_form = [path for path in pages if path.name.startswith(("drill_", "exercise_", "round_"))]
    assert len(of_one_form) > 20
    for path in sorted({*pages}.difference(of_one_form).union(of_one_form[::every])):
        page.goto(path.as_uri())
        assert_fits(page)
    page.close()
    assert told == []


def test_a_bet_is_locked_revealed_scored_and_remembered(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [], viewport={"width": 360, "height": 780})
    bet, outcome = page.locator(".bet"), page.locator("details.outcome").first
    assert not outcome.is_visible()
    lock = bet.get_by_role("button", name="Lock it")
    assert lock.bounding_box()["y"] < 740, "the first question is below the fold"
    lock.click()
    assert "Choose an answer first" in bet.inner_text()
    control = bet.locator("input").first
    control.focus()
    page.keyboard.press("Space" if control.get_attribute("type") == "radio" else "ArrowRight")
    lock.click()
    assert outcome.is_visible()
    assert "You said" in bet.inner_text()
    assert page.evaluate("document.activeElement.textContent") == "Bet again"
    page.reload()
    assert page.locator("details.outcome").first.is_visible()
    page.get_by_role("button", name="Bet again").click()
    assert not page.locator("details.outcome").first.is_visible()
    page.close()


def test_the_dashboard_measures_as_the_lab_does(browser: Any, site: Path) -> None:
    page = opened(browser, site / "dashboard.html", [])
    run = made_run(num_requests=7)
    shown = page.evaluate(
        "run => ({...minillmDashboard.meanPhases(run, run.end), ...minillmDashboard.figuresAt(run, run.end)})",
        trace_of(run, None, FIELDS),
    )
    assert {name: shown[name] for name in figures(run)} == pytest.approx(figures(run), rel=1e-3)
    page.close()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_dashboard_asks_for_a_bet_and_decides_it_on_one_screen(browser: Any, site: Path, scheme: str) -> None:
    told: list[str] = []
    page = opened(browser, site / "dashboard.html", told, viewport={"width": 1280, "height": 720}, color_scheme=scheme)
    page.wait_for_selector(".mm-dash[data-mode=still]")
    page.get_by_role("button", name="burst: more slots").click()
    page.locator(".mm-bet").get_by_role("radio", name="queue").click()
    page.get_by_role("button", name="Lock it, and run both").click()
    page.wait_for_selector(".mm-why:has-text('You said queue: right')")
    assert "better" in page.inner_text(".mm-card:has-text('TTFT')") and "−" in page.inner_text(".mm-delta >> nth=0")
    bottom = page.locator(".mm-scrub").bounding_box()
    assert bottom["y"] + bottom["height"] <= 720
    sizes = "all => Math.min(...all.map(each => parseFloat(getComputedStyle(each).fontSize)))"
    assert page.locator(".mm-dash *").evaluate_all(sizes) >= 11
    assert not told
    assert_clean(page, *SERIOUS)
    page.close()


def test_the_dashboard_says_what_was_not_recorded_and_keeps_what_it_shows(browser: Any, site: Path) -> None:
    page = opened(browser, site / "dashboard.html", [], reduced_motion="reduce")
    run = page.locator(".mm-bar .mm-run")
    for name in ("slots", "KV blocks"):
        page.get_by_role("spinbutton", name=name).press("ArrowLeft")
    run.click()
    page.wait_for_selector(".mm-failed:has-text('Nobody recorded this')")
    assert page.inner_text(".mm-total >> nth=0") != "–"
    page.get_by_role("button", name="KV blocks: back to").click()
    run.click()
    page.wait_for_selector(".mm-status:has-text('slots 4 → 3')")
    page.close()


def test_points_are_those_of_the_notebook(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [])
    draw = random.Random(1)
    for _ in range(60):
        whole, measured = draw.random() < 0.5, draw.choice([0.0, 1.0, 3.0, draw.uniform(0.1, 40)])
        said = draw.choice([measured, draw.uniform(0, 60)])
        bet = Prediction("?", between=(0, 100), whole=whole)
        told = page.evaluate(
            "([bet, said, outcome]) => minillmBets.points(bet, said, outcome)",
            [{"whole": whole}, said, {"answer": measured, "also": []}],
        )
        bet.picker = type("Said", (), {"value": said})()
        bet._is_said = True
        assert told == pytest.approx(bet.points(MeasuredAnswer(measured, "")), abs=0.011), (said, measured, whole)
    page.close()


def test_an_explorer_shows_its_recordings_and_the_calculator_its_first_answer(browser: Any, site: Path) -> None:
    told: list[str] = []
    for lesson in (path for path in sorted(site.glob("*.html")) if "data-frames" in path.read_text()):
        page = opened(browser, lesson, told)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.hidden = false; each.open = true })")
        panel = page.locator(".explorer:has(input[type=range])").first
        if panel.count():
            break
        page.close()
    stage = panel.locator(".stage").first
    before = stage.inner_html()
    slider = panel.locator("input[type=range]").first
    slider.focus()
    page.keyboard.press("Home" if slider.evaluate("each => each.value === each.max") else "End")
    page.wait_for_function("([stage, before]) => stage.innerHTML !== before", arg=[stage.element_handle(), before])
    page.close()
    page = opened(browser, site / "calculator.html", told)
    usual = calculator.sheet()
    few = usual.answer(usual.usual).replicas
    replicas, gpus = (page.locator(".mm-figures b").nth(i) for i in (0, 1))
    assert [replicas.inner_text(), gpus.inner_text()] == [str(few), str(4 * few)]
    assert page.locator(".mm-fleet i").count() == 4 * few
    page.get_by_label("requests a second, exactly").fill("100")
    assert "was asked at first" in page.inner_text("main") and replicas.inner_text() == str(few)
    page.close()
    assert told == []


SMALL = """() => [...document.querySelectorAll(
    "button, select, summary, input:not([type=radio], [type=checkbox], [type=file])")]
  .filter(each => each.checkVisibility({ visibilityProperty: true }) && !each.closest(".hidden"))
  .map(each => [each.outerHTML.slice(0, 80), each.getBoundingClientRect()])
  .filter(([, box]) => Math.min(box.width, box.height) < 24).map(([html]) => html)"""


def test_what_is_pressed_is_24_px_or_more(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [], viewport={"width": 390, "height": 844})
    for name in ("index", "02_queue", "07_kv_cache", "dashboard", "calculator", "incidents_to_play", "exercises"):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_load_state()
        assert page.evaluate(SMALL) == []
    page.close()


NAMELESS = """() => [...document.querySelectorAll("button, [role=img]")]
  .filter(each => !each.ariaLabel && !each.textContent.trim()).map(each => each.outerHTML.slice(0, 80))"""


def test_what_is_drawn_has_a_name_before_its_first_frame(browser: Any, site: Path) -> None:
    """On a busy machine a page is read, and Axe looks at it, before it's drawn."""
    never = "window.requestAnimationFrame = () => 1"
    for name in ("index", "dashboard", "calculator"):
        page = opened(browser, site / f"{name}.html", [], script=never)
        assert page.locator(".mm-dash [role=img]").count()
        assert page.evaluate(NAMELESS) == []
        page.close()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_finds_nothing_serious(browser: Any, site: Path, theme: str, width: int) -> None:
    for name in AXED[theme]:
        page = opened(browser, site / f"{name}.html", [], color_scheme=theme, viewport={"width": width, "height": 780})
        assert_clean(page, *SERIOUS)
        page.close()

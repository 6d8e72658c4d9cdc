"""The incident console in Chromium: its module on a page of its own, with a Python session at the other end of its
messages. (On the site the session is in the tab: test_tab.py.)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.module_page import show
from browser.pages import SERIOUS, assert_clean

from course.incidents import Incident
from course.incidents.desk import IncidentDesk
from course.incidents.generate import Hidden

pytestmark = pytest.mark.browser
FEW = ((1440, 900, "light"), (390, 844, "dark"))


def window(wide: int, high: int, scheme: str) -> dict[str, Any]:
    return {"viewport": {"width": wide, "height": high}, "color_scheme": scheme, "reduced_motion": "reduce"}


@pytest.fixture(scope="module")
def incident() -> Incident:
    """Not to be played on: a fresh copy knows what each change did in another one."""
    return Incident.generate(1, 1, "few_slots")


@pytest.fixture
def desk(incident: Incident, monkeypatch: pytest.MonkeyPatch) -> IncidentDesk:
    monkeypatch.setattr(Hidden, "scene_at", lambda hidden, minute: hidden.scene)  # later ones would be simulated each
    return IncidentDesk(incident.fresh())


@pytest.mark.parametrize("size", [*FEW, pytest.param((1280, 720, "dark"), marks=pytest.mark.slow)], ids=str)
def test_the_module_plays_a_session(
    browser: Any, desk: IncidentDesk, tmp_path: Path, size: tuple[int, int, str]
) -> None:
    look = window(*size)
    page = watched(browser, look)
    show(page, desk.widget, tmp_path)
    play(page)
    assert_fits(page, look)
    assert f"{desk.incident.grade().score:.0f} of 100" in page.inner_text(".mm-debrief h2")
    page.close()


def watched(browser: Any, look: dict[str, Any]) -> Any:
    """A page on which a script's error is the test's."""
    page = browser.new_page(**look)
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: pytest.fail(f"{error}"))
    return page


def press(page: Any, name: str, role: str = "button") -> Any:
    """By the keyboard."""
    found = page.get_by_role(role, name=name).locator("visible=true").first
    found.focus()
    page.keyboard.press("Enter")
    return found


def play(page: Any) -> None:
    """From the page to the debrief, without a mouse; what is out of turn is answered where it was pressed."""
    minute = until(page)
    minute(0)
    press(page, "Switch speculation off")
    page.wait_for_selector(".mm-effect:has-text('The SLO is')")
    minute(10)
    press(page, "Mitigate", "tab")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Ask"
    asked = press(page, "TTFT and ITL, separately")
    page.wait_for_selector(".mm-answered:has-text('TTFT p50')")
    assert "TTFT p50" in page.locator("li:has(:focus) .mm-said").inner_text(), "the answer stands where it was asked"
    hidden = page.eval_on_selector_all(
        ".mm-tablebox", "all => all.filter(box => box.scrollWidth > box.clientWidth).length"
    )
    assert hidden == 0, "a table's columns are all on the screen"
    minute(11)
    asked.press("Enter")  # asking twice costs nothing, and goes to the answer
    assert page.evaluate("document.activeElement.className").startswith("mm-answered")
    press(page, "Deploy", "tab")
    assert not page.get_by_role("button", name="To a canary").is_visible(), "the menu comes after the hypothesis"
    press(page, "Diagnose", "tab")
    press(page, "Write it down, and see the menus")
    page.wait_for_selector(".mm-refused:has-text('Write down what you suspect')")
    page.get_by_label("What you suspect").fill("slots")
    press(page, "Write it down, and see the menus")
    press(page, "Commit to this")
    page.wait_for_selector(".mm-refused:has-text('this one is blank')")
    page.get_by_role("radiogroup", name="Where the time is lost").get_by_role("radio", name="queue").press("Enter")
    page.get_by_role("checkbox", name="TTFT and ITL, separately").press("Space")
    press(page, "Commit to this")
    page.wait_for_selector("text=Committed at minute 11")
    press(page, "Deploy", "tab")
    press(page, "Roll back")
    minute(14)
    press(page, "Grade me")
    page.get_by_role("button", name="Go back and deploy").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Deploy"
    fix = page.locator(".mm-option input").nth(8)
    fix.focus()
    page.keyboard.press("Space")
    press(page, "To a canary")
    page.wait_for_selector(".mm-deploybar .mm-effect:has-text('Canary')")
    minute(19)
    press(page, "Deploy to all")
    page.wait_for_selector(".mm-deploybar .mm-effect:not(:has-text('Canary'))")
    assert_legible(page)
    press(page, "Grade me")
    page.wait_for_selector(".mm-debrief .mm-marks")
    assert "of 100" in page.evaluate("document.activeElement.textContent")
    assert page.evaluate("document.activeElement.getBoundingClientRect().top >= 0"), "the result is on the screen"
    assert page.locator(".mm-story path, .mm-story circle").count() > 4
    assert_legible(page)


def until(page: Any) -> Callable[[int], None]:
    """Waits until the incident's clock says so."""
    return lambda minute: page.wait_for_selector(f".mm-console[data-minute='{minute}']:not([aria-busy])")


def assert_legible(page: Any) -> None:
    """Axe finds nothing that matters; no type is under 11 px."""
    assert_clean(page, *SERIOUS)
    sizes = "all => Math.min(...all.map(each => parseFloat(getComputedStyle(each).fontSize)))"
    assert page.locator(".mm-console *").evaluate_all(sizes) >= 11


def assert_fits(page: Any, look: dict[str, Any]) -> None:
    """Nothing is wider than the window; on a screen that isn't a phone's, nothing is lower."""
    wide, high = look["viewport"]["width"], look["viewport"]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    for shown in ("Back to the debrief", "Look at the evidence again"):
        if wide > 1000:
            box = page.locator(".mm-console").bounding_box()
            assert box["y"] + box["height"] <= high
        found = page.get_by_role("button", name=shown)
        if found.is_visible():
            found.press("Enter")
            assert page.evaluate("document.activeElement !== document.body"), "who uses the keyboard keeps a place"

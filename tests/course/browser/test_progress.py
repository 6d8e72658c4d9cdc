"""Progress in a real browser: what pages note of it, and its way to the notebooks and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser.pages import assert_clean, assert_fits
from browser.pages import opened as opened_page
from made_progress import BOTH, HERE, THERE, unordered

from course.grading.exercises import find
from course.lab import progress
from course.lessons.start import resume
from course.lessons.start.contents import lessons
from course.lessons.start.imported import bring_in

pytestmark = pytest.mark.browser
BLOCKED = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"


def opened(browser: Any, path: Path, told: list[str], script: str = "") -> Any:
    """As a phone's visitor has it."""
    size = {"width": 390, "height": 844}
    return opened_page(browser, path.as_uri(), told, script, viewport=size, accept_downloads=True)


def bring(page: Any, held: str) -> str:
    """Import a text. Returns what the page says of it."""
    page.evaluate("document.querySelector('[data-progress] [role=status]').textContent = ''")
    file = {"name": "progress.json", "mimeType": "application/json", "buffer": held.encode()}
    page.get_by_label("A file to import").set_input_files(file)
    page.wait_for_function("document.querySelector('[data-progress] [role=status]').textContent !== ''")
    return page.locator("[data-progress] [role=status]").inner_text()


def taken(page: Any) -> str:
    """The text of what is exported."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def lock_a_bet(page: Any) -> None:
    control = page.locator(".bet input").first
    control.focus()
    page.keyboard.press("Space" if control.get_attribute("type") == "radio" else "ArrowRight")
    page.get_by_role("button", name="Lock it, and see").first.click()


def test_progress_goes_to_the_notebooks_and_back(browser: Any, site: Path, home: Path) -> None:
    told: list[str] = []
    bring_in(json.dumps(HERE).encode())
    page = opened(browser, site / "progress.html", told)
    assert "Imported: " in bring(page, json.dumps(THERE))
    words = bring(page, json.dumps({**resume.kept_contents(), "roof.json": {}}))
    assert words.endswith("only notebooks use it: roof.json.")
    assert unordered(json.loads(taken(page))) == unordered(BOTH)
    page.goto((site / "index.html").as_uri())
    lock_a_bet(page)
    page.goto((site / "progress.html").as_uri())
    bring_in(taken(page).encode())
    assert resume.kept_contents().keys() == BOTH.keys()
    records = progress.FILE.read().lessons
    (points,) = records.pop("00").predictions.values()
    assert points is not None and 0 <= points <= 1
    assert {number: each.model_dump() for number, each in records.items()} == BOTH["progress.json"]["lessons"]
    assert told == []
    page.close()


def test_the_page_says_how_far_and_erases_only_when_sure(browser: Any, site: Path) -> None:
    told: list[str] = []
    page = opened(browser, site / "progress.html", told)
    next_up = page.locator("[data-progress] h2 + p").first
    assert next_up.inner_text() == f"Lesson 00, {lessons()['00'].title}: a bet to lock"
    bring(page, json.dumps(BOTH))
    assert next_up.inner_text().startswith("Lesson 07, "), "where something happened last"
    for box in page.locator("[data-progress] details").all():
        box.locator("summary").click()
    shown = page.inner_text("[data-progress]")
    points = find("percentiles").max_score
    assert f"{points:g} of {points:g} points" in shown and "3 graded" in shown and "2 right of 2, streak" in shown
    assert "mid, mid, mid (the latest last)" in shown and "◐ 06" in shown
    assert_fits(page)
    assert told == []
    assert_clean(page)
    told.clear()  # it tries to load styles, which a page opened from disk can't
    for held, words in (("{", "isn't JSON"), ("[1]", "no progress"), ('{"daily.json": {"days": 1}}', "damaged")):
        assert words in bring(page, held)
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Erase").click()
    assert unordered(json.loads(taken(page))) == unordered(BOTH), "nothing was changed by what isn't progress"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Erase").click()
    assert json.loads(taken(page)) == {}
    assert told == []
    page.close()


def test_a_bet_counts_as_it_was_first_locked(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [])
    outcome = json.loads(page.locator("[data-outcome]").first.get_attribute("data-outcome"))
    options = page.locator(".bet").first.get_by_role("radio").all()
    wrong = next(each for each in options if each.get_attribute("value") not in (outcome["answer"], *outcome["also"]))
    right = next(each for each in options if each.get_attribute("value") == outcome["answer"])
    for choice, told in ((wrong, "Not this time."), (right, "Right.")):
        choice.press("Space")
        page.get_by_role("button", name="Lock it, and see").first.click()
        assert told in page.inner_text(".bet .verdict")
        kept = json.loads(page.evaluate("localStorage.getItem('minillm progress.json')"))
        assert list(kept["lessons"]["00"]["predictions"].values()) == [0]
        page.get_by_role("button", name="Bet again").click()
    page.close()


def test_a_browser_that_keeps_nothing_breaks_no_page(browser: Any, site: Path) -> None:
    told: list[str] = []
    page = opened(browser, site / "index.html", told, BLOCKED)
    lock_a_bet(page)
    assert "You said" in page.inner_text(".bet")
    page.goto((site / "progress.html").as_uri())
    assert "keeps nothing" in page.inner_text("[data-progress]")
    assert "couldn't keep" in bring(page, json.dumps(BOTH))
    assert told == []
    page.close()

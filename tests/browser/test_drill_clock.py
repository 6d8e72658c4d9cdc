"""The drills' clock in a real browser: right to a second, whatever else the page does."""

import shutil
from collections.abc import Iterator

import pytest

from course.lab.drills.clock import clock_html

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
PAGE = f'<button class="d-start">go</button><button class="d-stop">done</button>{clock_html("d", 4)}'


@pytest.fixture
def page() -> Iterator["playwright.Page"]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.set_content(PAGE)
        yield opened
        browser.close()


def off_by(page: "playwright.Page") -> float:
    """Seconds between what the clock says and the browser's own time since the press."""
    return page.evaluate(
        "() => (Date.now() - window.pressed) / 1000 - Number(document.querySelector('.d-clock').dataset.passed)"
    )


def test_the_clock_is_right_even_after_the_page_was_stuck(page: "playwright.Page") -> None:
    page.evaluate("document.addEventListener('click', () => { window.pressed ??= Date.now() }, true)")
    page.click(".d-start")
    page.wait_for_timeout(1200)
    assert abs(off_by(page)) < 1
    page.evaluate("() => { const until = Date.now() + 1500; while (Date.now() < until); }")  # no tick in all this time
    page.wait_for_timeout(300)
    assert abs(off_by(page)) < 1
    page.wait_for_function("document.querySelector('.d-clock').textContent.includes('over time')")
    page.click(".d-stop")
    shown = page.inner_text(".d-clock b")
    page.wait_for_timeout(1500)
    assert page.inner_text(".d-clock b") == shown, "handed in: it stands still"

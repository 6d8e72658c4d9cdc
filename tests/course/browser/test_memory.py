"""What a tab of the site takes, with Python in it: page, worker and WebAssembly are one process of Chromium."""

from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PYTHON_MB, MOST_MB = 100, 600
"""Less than the first, and no Python was in what was measured."""
START_MS = 120_000


def tab_mb(browser: Any) -> float:
    """Resident memory of the largest of Chromium's renderers: the others are kept for tabs to come."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    renderers = [psutil.Process(each["id"]) for each in processes if each["type"] == "renderer"]
    return max(each.memory_info().rss for each in renderers) / 1e6


@pytest.mark.parametrize("name", ["index", "dashboard", "incident", "11_capacity", "chat"])
def test_a_tab_with_python_stays_under_600_mb(browser: Any, address: str, name: str) -> None:
    visitor = browser.new_context(viewport={"width": 1280, "height": 800})
    page = visitor.new_page()
    page.goto(f"{address}/{name}.html")
    if name == "11_capacity":
        page.locator("[data-explorer*=knee_of_70b] input").first.press("ArrowRight")
    elif name == "index":
        page.locator("[data-live]").scroll_into_view_if_needed()
    elif name == "chat":
        page.get_by_role("button", name="Fetch the model").click()
    page.wait_for_selector("[data-is-live=yes]:not([aria-busy=true])", timeout=START_MS)
    if name == "dashboard":
        page.get_by_role("spinbutton", name="slots").press("ArrowLeft")
        page.locator(".mm-bar .mm-run").click()
        page.wait_for_selector(".mm-status:has-text('slots 4 → 3')", timeout=START_MS)
    used = tab_mb(browser)
    print(f"{name}: {used:.0f} MB")  # pytest -s shows it
    assert PYTHON_MB < used < MOST_MB
    visitor.close()

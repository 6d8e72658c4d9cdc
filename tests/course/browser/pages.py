"""What the tests of several pages ask of a page in a browser."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe

OWN = ("file:", "data:", "blob:", "http://127.0.0.1:")
SERIOUS = ("serious", "critical")


def opened(browser: Any, url: str, told: list[str], script: str = "", **options: Any) -> Any:
    """A page that notes what it says on its console, and each request to another host.

    Args:
        browser: or one visitor's context.
        script: what runs before the page's own.
    """
    page = browser.new_page(**options)
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.extend([request.url] * (not request.url.startswith(OWN))))
    page.add_init_script(script)
    page.goto(url)
    return page


def assert_clean(page: Any, *impacts: str) -> None:
    """Axe finds nothing, or nothing of these impacts."""
    found = Axe().run(page).response["violations"]
    worst = [each for each in found if not impacts or each["impact"] in impacts]
    assert not worst, [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in worst]


def assert_fits(page: Any) -> None:
    """Nothing is wider than the window."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{page.url} is {wide} px wider than its window"

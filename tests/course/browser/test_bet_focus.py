"""Where the keyboard is after a bet of a notebook is locked: the module on a page of its own, with its button."""

from pathlib import Path
from typing import Any

import pytest

from course.lab.live_view import LiveView

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><html lang="en"><head><title>A bet</title></head><body>
<div><button id="lock">Lock it</button><div id="el"></div></div><button id="other">Elsewhere</button>
<script type="module">
{script}
let value = "Choose, then lock it.", heard = () => undefined;
const model = {{ get: () => value, on: (_, tell) => (heard = tell), off: () => undefined }};
widget.render({{ model, el: document.getElementById("el") }});
window.says = (words) => {{ value = words; heard(); }};
</script></body></html>"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    script = str(LiveView._esm).replace("export default", "const widget =")
    (tmp_path / "bet.html").write_text(PAGE.format(script=script), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "bet.html").as_uri())
    page.wait_for_function("window.says !== undefined")
    yield page
    page.close()


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.textContent")


def test_the_focus_goes_on_to_what_is_said_of_a_locked_bet(page: Any) -> None:
    page.focus("#lock")
    page.evaluate("says('Choose an answer first.')")
    assert focused(page) == "Lock it", "it's still to be pressed"
    page.evaluate("document.getElementById('lock').disabled = true")
    page.evaluate("says('Locked: <b>queue</b>.')")
    assert focused(page) == "Locked: queue."


def test_the_focus_stays_where_the_reader_has_taken_it(page: Any) -> None:
    page.focus("#lock")
    page.focus("#other")
    page.evaluate("document.getElementById('lock').disabled = true")
    page.evaluate("says('Locked: <b>queue</b>.')")
    assert focused(page) == "Elsewhere"

"""The drills' clock and recorder in a real browser: right to a second, and nothing leaves the page."""

from collections.abc import Iterator
from typing import Any

import pytest

from course.drills.clock import clock_html
from course.drills.recorder import recorder_html

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PAGE = f'<button class="d-start">go</button><button class="d-stop">done</button>{clock_html("d", 4)}'


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    opened.set_content(PAGE)
    yield opened
    opened.close()


IS_RIGHT = """() => {
    const passed = Number(document.querySelector('.d-clock').dataset.passed)
    return Math.abs((Date.now() - window.pressed) / 1000 - passed) < 1
}"""
"""The clock says what the browser's own time since the press is."""


def test_the_clock_is_right_even_after_the_page_was_stuck(page: Any) -> None:
    page.evaluate("document.addEventListener('click', () => { window.pressed ??= Date.now() }, true)")
    page.click(".d-start")
    page.evaluate("() => { const until = Date.now() + 1500; while (Date.now() < until); }")  # no tick in all this time
    page.wait_for_function(IS_RIGHT)
    page.wait_for_function("document.querySelector('.d-clock').textContent.includes('over time')")
    page.click(".d-stop")
    shown = page.inner_text(".d-clock b")
    page.wait_for_timeout(1500)
    assert page.inner_text(".d-clock b") == shown, "it stands still"


TONE = """() => Object.defineProperty(navigator, 'mediaDevices', {value: {getUserMedia: async () => {
    const context = new AudioContext(), tone = context.createOscillator(), end = context.createMediaStreamDestination()
    tone.connect(end); tone.start()
    return end.stream
}}})"""
"""A microphone that hears a tone."""


def test_a_recording_can_be_heard_and_goes_nowhere(browser: Any) -> None:
    opened, asked = browser.new_page(), []
    opened.set_content(recorder_html("d"))
    opened.on("request", lambda request: asked.append(request.url))
    opened.click(".d-record")
    opened.wait_for_function("document.querySelector('.d-recorder span').textContent.includes('No recording')")
    opened.evaluate(TONE)
    opened.click(".d-record")
    opened.get_by_role("button", name="Stop recording").click()
    opened.get_by_role("button", name="Record again").wait_for()
    assert opened.locator("audio").get_attribute("src").startswith("blob:") and opened.locator("audio").is_visible()
    assert not [url for url in asked if not url.startswith("blob:")]
    opened.close()

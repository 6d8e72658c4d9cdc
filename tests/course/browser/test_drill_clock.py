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
    """A page whose time passes when the test says so."""
    opened = browser.new_page()
    opened.clock.install(time=0)
    opened.clock.pause_at(1000)
    opened.set_content(PAGE)
    yield opened
    opened.close()


def test_the_clock_is_right_even_after_the_page_was_stuck(page: Any) -> None:
    face = page.locator(".d-clock b")
    page.click(".d-start")
    page.clock.run_for(1500)
    assert face.inner_text() == "0:03"
    page.clock.fast_forward(3600_000)  # as after a laptop's lid was closed: one tick for all this time
    assert face.inner_text() == "59:57" and "over time" in page.inner_text(".d-clock")
    page.click(".d-stop")
    page.clock.run_for(5000)
    assert face.inner_text() == "59:57", "it stands still"


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

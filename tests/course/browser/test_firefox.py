"""The site's Python in the Firefox of a distribution, over WebDriver BiDi: Playwright only drives one of its own."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S, wait_for

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(FIREFOX is None, reason="no Firefox on this machine (Debian: apt install firefox-esr)"),
]
DOWN, ENTER = "\ue015", "\ue007"
"""Keys, as WebDriver writes them."""


class Firefox:
    """One window of a Firefox, and what its pages told their console."""

    def __init__(self, address: str) -> None:
        websocket = pytest.importorskip("websocket")
        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=PATIENCE_S)
        self._numbers = count(1)
        self.told: list[str] = []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self._window = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv())).get("id") != number:
            entry = message["params"]
            self.told.append(f"{entry['level']}: {entry['text']}")
        assert message["type"] == "success", message
        return message["result"]

    def open(self, url: str) -> None:
        self.call("browsingContext.navigate", context=self._window, url=url, wait="complete")

    def type(self, keys: str) -> None:
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        board = {"type": "key", "id": "keyboard", "actions": strokes}
        self.call("input.performActions", context=self._window, actions=[board])

    def is_true(self, expression: str) -> bool:
        """Whether an expression holds in the page; not to be asked while another page is being opened."""
        target = {"context": self._window}
        found = self.call("script.evaluate", target=target, awaitPromise=False, expression=f"Boolean({expression})")
        return found["result"]["value"]

    def wait_for(self, expression: str) -> None:
        wait_for(lambda: self.is_true(expression), expression)

    @property
    def url(self) -> str:
        return self.call("browsingContext.getTree")["contexts"][0]["url"]


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    command = [str(FIREFOX), "--headless", "--no-remote", "--profile", str(tmp_path), "--remote-debugging-port=0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr or ())
        if (found := next(filter(None, said), None)) is None:
            pytest.fail("Firefox ended before it could be driven")
        threading.Thread(target=process.communicate, daemon=True).start()  # a full pipe would stop it
        try:
            opened = Firefox(f"{found[1]}/session")
            yield opened
            opened.call("browser.close")
        finally:
            process.terminate()


@pytest.mark.parametrize("name", ["index", "dashboard", "incident"])
def test_python_is_live_in_firefox_too(firefox: Firefox, address: str, name: str) -> None:
    firefox.open(f"{address}/{name}.html")
    firefox.is_true("(document.querySelector('[data-live]')?.scrollIntoView(), true)")
    firefox.wait_for("document.querySelector('[data-is-live=yes]')")
    assert firefox.told == []


def test_an_explorer_and_the_calculator_are_answered_in_firefox_too(firefox: Firefox, address: str) -> None:
    moved = "element.dispatchEvent(new Event('input'))"
    for name, control, value in (
        ("10b_network", "[data-explorer*=regions] input", "0"),
        ("calculator", ".mm-ask input", "9"),
    ):
        firefox.open(f"{address}/{name}.html")
        firefox.is_true(f"(element => {{ element.value = '{value}'; {moved}; }})(document.querySelector('{control}'))")
        firefox.wait_for("document.querySelector('[data-is-live=yes]')")
    assert firefox.told == []


def test_a_word_is_found_by_keyboard_in_firefox_too(firefox: Firefox, address: str) -> None:
    firefox.open(f"{address}/02_queue.html")
    firefox.type("/chunked pref")
    firefox.wait_for("document.querySelector('#found a')?.hash === '#chunked-prefill'")
    firefox.type(DOWN + ENTER)
    wait_for(lambda: firefox.url.endswith("/glossary.html#chunked-prefill"), "the glossary")
    assert firefox.told == []

"""A prompt on a terminal has history and completion; elsewhere there are plain lines."""

import io
import sys
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.core.timeline import Timeline
from minillm.frontend.chat import Chat
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.frontend.terminal import Lines

TITLE = "a\x1b]0;mine\x07 é\x9b5A"
"""Renames a terminal's window, and moves its cursor."""
UP, TAB, ENTER, END, STOP = "\x1b[A", "\t", "\r", "\x04", "\x03"


def test_a_terminal_has_history_and_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: True))
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        lines = Lines("trial", ["deploy", "grade"])
        for typed, got in ((["grade"], "grade"), ([UP], "grade"), (["dep", TAB], "deploy")):
            for i, part in enumerate([*typed, ENTER]):  # history and completions come in threads of their own
                Timer(0.2 * (i + 1), keys.send_text, [part]).start()
            assert lines.read("> ") == got
        for typed, got in ((STOP, ""), (END, None)):
            keys.send_text(typed)
            assert lines.read("> ", ignored=KeyboardInterrupt) == got
    assert "+deploy" in (tmp_path / "trial.history").read_text()


def test_a_pipe_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    shown = io.StringIO()
    lines = Lines("trial", screen=shown)
    assert [lines.read("> ") for _ in range(3)] == ["one\n", "two\n", None]
    assert shown.getvalue() == "> > > \n", "what comes after the end begins a line"


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(("is_terminal", "written"), [(True, r"a\x1b]0;mine\x07 é\x9b5A"), (False, TITLE)])
def test_a_model_controls_no_terminal(is_terminal: bool, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(0.0, finished=0.0)
    output = RequestOutput("r", None, [1], [Completion(TITLE, [2], FinishReason.STOP, None, timeline)])
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    engine: Any = SimpleNamespace(submit=lambda *_: [output])
    Chat(engine, SamplingParams(), None, screen).talk()
    assert written in screen.getvalue() and (TITLE in screen.getvalue()) is not is_terminal

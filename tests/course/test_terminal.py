"""Text is broken where a terminal ends."""

import io

import pytest

from course.terminal import fitted


def test_text_is_broken_where_a_terminal_ends_and_left_alone_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    text = "short\n  name  a line of more than twenty columns"
    terminal = io.StringIO()
    assert fitted(text, terminal) == text
    terminal.isatty = lambda: True
    assert fitted(text, terminal) == "short\n  name  a line of\n        more than\n        twenty\n        columns"

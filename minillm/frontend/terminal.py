"""A terminal: lines typed there, with editing, completion and a history that outlives the process; and how a
model's text is shown."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from minillm.host.storage import cache_home

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""Control characters, and what a terminal shows of them."""


def safe_text(text: str, screen: TextIO) -> str:
    """A model's text for a screen. A terminal obeys control characters: a model, or a page that it was given to read,
    could rename the window or write to the clipboard. So they're spelled out there; files get the text as it is."""
    return text.translate(CONTROLS) if screen.isatty() else text


class Lines:
    """Where both ends are a terminal, prompt_toolkit's prompt; else plain lines, for scripts and pipes.

    Args:
        name: the history's file in the cache folder.
        words: to complete with Tab.
        screen: gets the prompts; None = standard output.
    """

    def __init__(self, name: str, words: Sequence[str] = (), screen: TextIO | None = None) -> None:
        self._screen = screen or sys.stdout
        self._session: PromptSession[str] | None = None
        if sys.stdin.isatty() and self._screen is sys.stdout and sys.stdout.isatty():
            from prompt_toolkit import PromptSession as Session  # takes a while to import
            from prompt_toolkit.completion import WordCompleter
            from prompt_toolkit.history import FileHistory

            path = cache_home() / f"{name}.history"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._session = Session(history=FileHistory(str(path)), completer=WordCompleter(list(words), WORD=True))

    def read(self, prompt: str, ignored: type[BaseException] | tuple[()] = ()) -> str | None:
        """The next line; None at the end of the input, and an empty one where `ignored` was raised at the prompt."""
        if self._session is None:
            print(prompt, end="", file=self._screen, flush=True)
            line = sys.stdin.readline()
            if not line:
                print(file=self._screen)  # what follows begins a line of its own
            return line or None
        try:
            return self._session.prompt(prompt)
        except EOFError:
            return None
        except ignored:
            return ""

"""What is played in a terminal and left before its end: all that was typed is kept, and played again to go on."""

import sys
from collections.abc import Callable
from typing import TextIO, TypeVar

from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel

QUIT = ("quit", "exit")


class LeftSession(StoredModel):
    """A session until its end. What it is about follows from its other fields, so lines are all the state."""

    offers: str = ""
    """What the lines were typed about, as a hash."""
    lines: list[str] = Field(default_factory=list)
    """All that was typed."""


Left = TypeVar("Left", bound=LeftSession)


def keep_left(store: JsonStore[Left], left: Left) -> None:
    """In place of what was kept."""
    store.change(lambda kept: _copy(left, kept))


def forget_left(store: JsonStore[Left], left: Left) -> None:
    """It's over. One that another terminal has put in its place since is kept."""

    def clear(kept: Left) -> None:
        if kept == left:
            _copy(type(left)(), kept)

    store.change(clear)


def _copy(source: LeftSession, to: LeftSession) -> None:
    for name, value in source:
        setattr(to, name, value)


def is_over(line: str) -> bool:
    """Whether it leaves."""
    return line.strip() in QUIT


class KeptLines:
    """Lines that were typed before a session was left, and then a terminal's.

    Args:
        again: what was typed before.
        read: asks the terminal.
        keep: is handed each line that is typed now, but for those that leave.
        screen: shows what was typed before; None = standard output.
    """

    def __init__(
        self,
        again: list[str],
        read: Callable[[str], str | None],
        keep: Callable[[str], None],
        screen: TextIO | None = None,
    ) -> None:
        self._again, self._read, self._keep, self._screen = iter([*again]), read, keep, screen or sys.stdout

    def read(self, prompt: str) -> str | None:
        """The next line; None at the end of the input."""
        again = next(self._again, None)
        if again is not None:
            print(f"{prompt}{again.rstrip()}", file=self._screen)
            return again
        line = self._read(prompt)
        if line is not None and not is_over(line):
            self._keep(line)
        return line

"""Calls to a learner's part in the engine, and what happens when it breaks the rules."""

from collections.abc import Callable
from typing import Any

from course.grading.blame import message_of


class FallbackGuard:
    """Calls a learner's part as long as it keeps the rules, and the engine's own from then on.

    Args:
        name: of the part, for the note.
    """

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.is_trusted = True
        self._notes = notes

    def call(self, part: Callable[[], Any], instead: Callable[[], Any]) -> Any:
        """What the part says, or what the engine's own says once it has failed. A ValueError names a broken rule."""
        if self.is_trusted:
            try:
                return part()
            except Exception as error:
                self.distrust(f"{type(error).__name__}: {message_of(error)}")
        return instead()

    def distrust(self, why: str) -> None:
        self.is_trusted = False
        self._notes.append(f"your {self.name} was replaced by the engine's own: {why}")

"""A learner's code in the same Python as its judge, behind the messages that pass to a process of its own elsewhere.

In a notebook an answer gets a process. A tab has one, which the page ends where an answer doesn't come to its end. So
nothing is confined here, and nothing need be: it's the reader's own page, and their own code.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from course.grading.remote import Answer, AnswerEndedError

GRADING = Path(__file__).resolve().parents[1] / "grading"


class AnswerBeside:
    """Stands for the other process.

    Args:
        limit_s: CPU seconds that all questions may take together.
    """

    def __init__(self, limit_s: float) -> None:
        if str(GRADING) not in sys.path:
            sys.path.append(str(GRADING))  # child.py finds its neighbours as a script does
        self._limit_s = limit_s
        self._child: Any = importlib.import_module("child")
        self._desk = self._child.AnswerDesk()
        self._lines = self._child.Printed()

    @property
    def printed(self) -> str:
        """The end of what the answer printed."""
        return self._lines.end

    def loaded(self, path: str, text: str) -> Answer:
        """The answer, run once. Raises what it raises.

        Args:
            path: its file, as explanations name it.
        """
        answer = Answer(self._exchange, self._limit_s, lambda: AnswerBeside(self._limit_s).loaded(path, text))
        self._desk.task, self._desk.files = {"lines": {path: text}}, frozenset((path,))
        self._child.remember(path, text)
        answer.again()
        return answer

    def _exchange(self, message: bytes, limit_s: float) -> bytes:
        """As runner.py asks a child."""
        desk, wire = self._desk, self._child.wire
        desk.took = 0.0
        before, sys.stdout = sys.stdout, self._lines
        try:
            replies = desk.replies(*desk.unpacked(message))
        finally:
            sys.stdout = before
        if desk.took > limit_s:
            raise AnswerEndedError(f"stopped: not done after {self._limit_s:g} s")
        return wire.packed((replies, self._lines.end, desk.took), desk.number_of)

"""The number to beat, in a browser tab: the same trace, fleet and score; the file runs in the page's own Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.challenge import starter
from course.challenge.entry import LIMIT_S, MOST_LINES, Contestant, Entry, told
from course.challenge.result import score
from course.challenge.rounds import Round
from course.tab.answer_beside import AnswerBeside

FILE = "policy.py"
SLOWER = 6
"""A tab may take so many times as long as Python elsewhere."""


@dataclass(frozen=True)
class TabEntry(Entry):
    """A contestant's file whose policies run beside the game. What it may use is read off its text, as everywhere."""

    @contextmanager
    def opened(self) -> Iterator[Contestant]:
        with told(self):
            answer = AnswerBeside(SLOWER * LIMIT_S).loaded(self.path, self.text)
        yield self.contestant(answer)


def exported() -> dict[str, Any]:
    """What a page begins with."""
    return {"starter": Path(starter.__file__).read_text(encoding="utf-8"), "lines": MOST_LINES}


def play(text: str, seed: int) -> dict[str, Any]:
    """A file's score on one trace, beside the ladder's.

    Raises:
        EntryError: it breaks a rule, or fails.
        RoundError: the seed is negative.
    """
    entry = TabEntry(FILE, text)
    entry.check()
    return score(entry, Round.of_seeds([seed])).to_dict()

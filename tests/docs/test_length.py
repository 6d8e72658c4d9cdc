"""A lesson can be read in the time that it promises."""

import re
from pathlib import Path

import pytest

from course.lessons.start.contents import Lesson, lesson_sources

MOST_WORDS, MOST_CELLS = 1200, 44
"""Words of prose that a lesson may have above "Going deeper", without folds; and cells of both kinds."""
MOST_IN_ALL = 1900
"""Words without what is folded away and its sources."""
DEEPER = re.compile(r"^## (?:Going deeper|Deep dive)$", re.M)


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_lesson_is_short(path: Path) -> None:
    cells = Lesson(path).cells
    line = next(i for i, (kind, text) in enumerate(cells) if kind == "markdown" and DEEPER.search(text))
    text = "\n".join(source for kind, source in cells if kind == "markdown").partition("## Sources")[0]
    above, below = DEEPER.split(re.sub(r"<details>.*?</details>", "", text, flags=re.S))
    assert _words(above) <= MOST_WORDS and _words(above) + _words(below) <= MOST_IN_ALL
    assert line <= MOST_CELLS


def _words(text: str) -> int:
    return len(re.findall(r"[^\W_][\w'’-]*", text))

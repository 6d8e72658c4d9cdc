"""A lesson can be read in the time that it promises."""

import re
from pathlib import Path

import pytest

from course.lessons.start.contents import Lesson, lesson_sources

MOST_WORDS = 1600
"""In a lesson's prose, without what is folded away and its sources: forty minutes with its runs."""


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_lesson_is_short(path: Path) -> None:
    text = "\n".join(source for kind, source in Lesson(path).cells if kind == "markdown")
    text = re.sub(r"<details>.*?</details>", "", text.partition("## Sources")[0], flags=re.S)
    words = len(re.findall(r"[^\W_][\w'’-]*", text))
    assert words <= MOST_WORDS, f"{words} words"

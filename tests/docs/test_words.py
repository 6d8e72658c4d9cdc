"""Prose speaks the field's language: the words that this project once made up for itself appear nowhere."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.lab.build import COURSE, read_source, sources
from course.lab.start.contents import Lesson, lesson_sources

ROOT = COURSE.parent
MADE_UP = re.compile(
    r"\b(seats?|dear(er|est)?|door(man|way)?s?|the building|the house|whoever|nobody|somebody|anybody|everybody|"
    r"people in line|in the line|the line went|talks|the handles?|a handle|leaps?|leapt|courier|inbox|"
    r"promis(e|es|ed|ing) (latency|ttft|itl|tpot|limits?|you)|limits? (you|they|we) promised|gives? way|give way)\b",
    re.I,
)
"""Say: slot, queue, expensive, admission control, SLO, conversation, another request, slider, fast-forward."""
NO_PROSE = {COURSE / "lab/texts.toml"}
"""A story that prompts are cut from."""
MOST_WORDS = 1600
"""Of a lesson's prose, without what is folded away and its sources: forty minutes with its runs."""


def prose() -> Iterator[tuple[str, str]]:
    """Everything that a reader reads, by the file it stands in."""
    for path in (*sources(), *sorted((ROOT / "solutions").glob("[0-9]*.py"))):
        cells = read_source(path).cells
        yield str(path.relative_to(ROOT)), "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(COURSE.rglob("*.md"))):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted([*COURSE.glob("lab/**/*.py"), *ROOT.glob("minillm/**/*.py")]):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in sorted(set(COURSE.rglob("*.toml")) - NO_PROSE):
        yield str(path.relative_to(ROOT)), "\n".join(_strings(tomllib.loads(path.read_text(encoding="utf-8"))))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def test_prose_has_no_made_up_words() -> None:
    found = {file: {each.group() for each in MADE_UP.finditer(text)} for file, text in prose()}
    assert not {file: words for file, words in found.items() if words}


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_lesson_is_short(path: Path) -> None:
    text = "\n".join(source for kind, source in Lesson(path).cells if kind == "markdown")
    text = re.sub(r"<details>.*?</details>", "", text.partition("## Sources")[0], flags=re.S)
    words = len(re.findall(r"[^\W_][\w'’-]*", text))
    assert words <= MOST_WORDS, f"{words} words"

"""What leads to the line is one bet and short; the interview has all that it's for."""

import re
from inspect import signature

import pytest

from course.grading.check_session import interview_line
from course.lab.build import lesson_sources, read_source
from course.lab.finding import LESSONS
from course.lessons.lesson_14.ledger import words_of

NUMBERS = sorted(words.parent.name.removeprefix("lesson_") for words in LESSONS.glob("lesson_*/words.py"))[1:]
"""All but 00, which is for everybody's first half an hour."""
MOST_SPOKEN, MOST_WORDS, MOST_CELLS, MOST_STEPS = 45, 1200, 22, 6
QUESTION = re.compile(r'<details><summary>"[^\n]+"</summary>\n\n.{80,}?</details>', re.DOTALL)
LEVELS = re.compile(r"^\| weak \| senior \| staff \|\n\|---\|---\|---\|\n(\|[^|\n]{15,}){3}\|$", re.MULTILINE)


def sections(number: str) -> tuple[list[str], str, str]:
    """A lesson's cells up to the interview, code fenced; the interview up to the whiteboard; the whiteboard."""
    [path] = (path for path in lesson_sources() if path.stem.startswith(f"{number}_"))
    cells = [f"```\n{c.source}\n```" if c.cell_type == "code" else c.source for c in read_source(path).cells]
    line = next(i for i, cell in enumerate(cells) if cell.startswith("## In the interview"))
    asked, board = "\n".join(cells[line:]).split("**On the whiteboard**")
    return cells[:line], asked, board.partition("\n## ")[0]


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interview_has_a_line_follow_ups_three_answers_three_numbers_and_a_derivation(number: str) -> None:
    _, asked, board = sections(number)
    assert 20 <= len(interview_line(number).split()) <= MOST_SPOKEN
    assert len(QUESTION.findall(asked)) == 2 and LEVELS.search(asked)
    assert "```\nwords.three_numbers(" in asked
    numbers = words_of(number).three_numbers
    assert signature(numbers).parameters or str(numbers()).count("\n") == 3
    assert board.count("<details>") == 1 and 3 <= len(re.findall(r"^\d\. ", board, re.MULTILINE)) <= MOST_STEPS


@pytest.mark.parametrize("number", NUMBERS)
def test_to_its_line_a_lesson_is_one_bet_and_short(number: str) -> None:
    cells, *_ = sections(number)
    prose = " ".join(cell for cell in cells if not cell.startswith("```"))
    assert len(cells) <= MOST_CELLS
    assert len(re.findall(r"[^\W_][\w'’-]*", prose)) <= MOST_WORDS
    assert sum("lab.predict(" in cell for cell in cells) == 1

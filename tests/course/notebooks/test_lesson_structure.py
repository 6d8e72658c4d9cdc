"""What every lesson promises: three depths, a locked prediction, a place where the technique fails, and honesty."""

import re

import pytest

from course.grading.check_session import interview_line
from course.lab.build import lesson_sources, read_source, sources
from course.lessons.lesson_14.ledger import words_of
from course.lessons.start.contents import EARLIER

SECTIONS = ("## Five minutes", "## The lab", "## Going deeper", "## In the interview", "## Check yourself")


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_lesson_has_all_its_parts(path) -> None:
    cells = read_source(path).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for before, now in EARLIER.items():
        prose = prose.replace(f"## {before}\n", f"## {now}\n")
    places = [prose.index(section) for section in SECTIONS]
    assert places[:2] == sorted(places)[:2], "five minutes, then the lab"
    assert "## What this lab cannot tell you" in prose
    assert "## Sources" in prose
    for key in re.findall(r"(\w+) = lab\.predict\(", code):
        assert code.index(f"{key} = lab.predict(") < code.index(f"{key}.score("), "predict first, score after the run"
    module = words_of(path.stem.partition("_")[0])
    shown = set(re.findall(r"^\s*(?:ledger\.keep\()?(?:words\.)?([a-f]\d+)\(", code, re.M))
    assert shown == {claim.lower() for claim in module.MEASURE}, "a lesson shows each of its claims, measured"


@pytest.mark.parametrize("path", lesson_sources(), ids=lambda path: path.stem)
def test_a_prediction_stands_before_the_run_that_decides_it(path) -> None:
    code = [cell.source for cell in read_source(path).cells if cell.cell_type == "code"]
    for number, source in enumerate(code):
        if ".score(" in source:
            runs = (
                r"lab\.run\(|ledger\.measure|\b(run|simulated|services(_70b)?|traffic|tenants|tiers|transfer|experts)\."
            )
            # Lesson 13 scores texts; lesson 12 asks two incidents and changes them; lesson 11b watches a deploy.
            deciding = re.search(
                runs + r"|lesson\.duel|lesson\.strong_to_staff|words\.(apart|tried|until_undone)", source
            )
            assert deciding, "the deciding run belongs to the cell that scores"
            assert "lab.predict(" in code[number - 1]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_no_measured_number_is_typed_into_the_prose(path) -> None:
    """Durations in the prose are definitions, settings, other people's limits or published: never this machine's."""
    allowed = {"80 ms", "7 s", "50 ms", "17 ms", "16.6 ms", "6.18 ms", "6.2 ms", "4.1 ms", "7.8 ms", "5 s"}
    prose = "\n".join(cell.source for cell in read_source(path).cells if cell.cell_type == "markdown")
    prose = INTERVIEW.sub("", prose)  # invented cases
    assert set(re.findall(r"\b[\d.]+ (?:ms|s)\b", prose)) <= allowed


INTERVIEW = re.compile(r"^## In the interview$.*?(?=^## )", re.DOTALL | re.MULTILINE)
FIRST = ("01", "02", "02b", "03", "04", "05", "05b", "06", "06b")
"""Lessons whose line stands before what goes deeper."""
LEVELS = "| weak | senior | staff |\n|---|---|---|"
MOST_SPOKEN, MOST_WORDS, MOST_CELLS, MOST_STEPS = 45, 1200, 22, 6


def lesson_of(number: str) -> list[str]:
    """The sources of a lesson's cells; code is fenced, so that a heading in it is none."""
    [path] = (path for path in lesson_sources() if path.stem.startswith(f"{number}_"))
    return [f"```\n{c.source}\n```" if c.cell_type == "code" else c.source for c in read_source(path).cells]


@pytest.mark.parametrize("number", FIRST)
def test_an_interview_has_a_line_follow_ups_three_answers_three_numbers_and_a_derivation(number: str) -> None:
    section = INTERVIEW.search("\n".join(lesson_of(number)))[0]
    assert 20 <= len(interview_line(number).split()) <= MOST_SPOKEN
    told = section.partition("**Follow-ups**")[2]
    questions, board = told.split("**On the whiteboard**")
    assert len(re.findall(r'<details><summary>"[^\n]+"</summary>\n\n.{80,}?</details>', questions, re.DOTALL)) == 2
    assert re.search(
        r"^\| weak \| senior \| staff \|\n\|---\|---\|---\|\n(\|[^|\n]{15,}){3}\|$", questions, re.MULTILINE
    )
    assert "```\nwords.three_numbers()\n```" in questions
    steps = re.findall(r"^(\d)\. ", board, re.MULTILINE)
    assert board.count("<details>") == 1 and 3 <= len(steps) <= MOST_STEPS
    assert str(words_of(number).three_numbers()).count("\n") == 3


@pytest.mark.parametrize("number", FIRST)
def test_to_its_line_a_lesson_is_one_bet_and_short(number: str) -> None:
    cells = lesson_of(number)
    to_the_line = cells[: next(i for i, cell in enumerate(cells) if cell.startswith("## In the interview"))]
    prose = " ".join(cell for cell in to_the_line if not cell.startswith("```"))
    assert len(to_the_line) <= MOST_CELLS
    assert len(re.findall(r"[^\W_][\w'’-]*", prose)) <= MOST_WORDS
    assert sum("lab.predict(" in cell for cell in to_the_line) == 1

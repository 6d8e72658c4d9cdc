"""What every lesson promises: three depths, a locked prediction, a place where the technique fails, and honesty."""

import re

import pytest

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

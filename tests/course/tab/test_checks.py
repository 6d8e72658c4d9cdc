"""Lessons' checks as a tab grades them: their own graders, and what a notebook would keep of it."""

import importlib
import json

import pytest

from course.lessons.start.imported import bring_in
from course.tab.answer import Answers
from course.tab.checks import ANSWERED

SIMULATED = ("11", "11b", "11c")
LESSONS = [lesson if lesson not in SIMULATED else pytest.param(lesson, marks=pytest.mark.slow) for lesson in ANSWERED]


def ask(answers: Answers, asked: str, of: int | None = None, **given: object) -> dict[str, object]:
    return json.loads(answers.answer(json.dumps({"name": asked, "given": given, "of": of})))


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_answer_is_graded_as_in_the_notebook_and_kept(lesson: str) -> None:
    answers = Answers()
    number = ask(answers, "check.open", lesson=lesson)["value"]
    asked = ask(answers, "check.questions", number)["value"]["questions"]
    package = f"course.lessons.lesson_{lesson}"
    run = importlib.import_module(f"{package}.run")
    here = importlib.import_module(f"{package}.check").checks(*ANSWERED[lesson](run))
    assert list(asked) == list(here.questions) and asked
    for name, question in here.questions.items():
        written = question.options[0] if question.options else "12"
        graded, right = (
            ask(answers, "check.answer", number, question=name, written=written)["value"],
            here(name, question.read(written)),
        )
        record = graded["kept"]["progress.json"]["lessons"][lesson]["checks"]
        assert record == {name: {"score": right.score, "possible": right.max_score}}
        is_right = right.score == right.max_score
        assert is_right or all(each.reveal not in graded["told"] for each in right.criteria if each.reveal)
        again = ask(answers, "check.answer", number, question=name, written=written)["value"]["told"]
        assert ("Try once more" not in again) and len(again) >= len(graded["told"]) - 80


def test_what_was_answered_can_be_brought_into_the_notebooks(home: None) -> None:
    answers = Answers()
    number = ask(answers, "check.open", lesson="06c")["value"]
    options = ask(answers, "check.questions", number)["value"]["questions"]["q3"]["options"]
    told = [ask(answers, "check.answer", number, question="q3", written=option)["value"] for option in options]
    (right,) = [each for each in told if "Right" in each["told"]]
    assert "1 of 3" in told[-1]["head"]
    assert "progress.json" in bring_in(json.dumps(right["kept"]).encode())
    assert "notebook" in str(ask(answers, "check.open", lesson="00")["refused"])

"""Exercises in a browser tab: the same judges, the same feedback, and answers that serve."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "grading"))  # wrong_answers

from wrong_answers import wrong_answers

from course.grading.exercises import catalogue, find
from course.grading.runner import GradingWorker, Submission
from course.grading.source import answer_file
from course.tab import exercises
from minillm.core.errors import ConfigError

WRONG = Path(__file__).parents[1] / "grading" / "wrong"
QUICK = ("block-pool", "chunked-prefill", "prefix-hash-chain")


def test_a_dozen_and_more_are_offered_and_none_shows_its_answer() -> None:
    offered = exercises.offered()
    assert len(offered) >= 12 and set(exercises.SERVED) <= {each.id for each in offered}
    for each in offered:
        told = exercises.exported(each)
        assert told["stub"] != answer_file(each, "solution") and "NotImplementedError" in told["stub"]
    with pytest.raises(LookupError, match="more than a browser has"):
        exercises.check(next(each.id for each in catalogue() if each not in offered), "")


@pytest.mark.parametrize(
    "name",
    [each.id if each.id in QUICK else pytest.param(each.id, marks=pytest.mark.slow) for each in exercises.offered()],
)
def test_the_model_answer_is_right_and_the_stub_is_not(name: str) -> None:
    right = exercises.check(name, answer_file(find(name), "solution"), seed=3)["criteria"]
    assert sum(each["earned"] for each in right) == find(name).max_score
    stub = exercises.check(name, answer_file(find(name), "stub"), seed=3)["criteria"]
    assert sum(each["earned"] for each in stub) == 0


@pytest.mark.parametrize("name", QUICK[1:])
def test_a_wrong_answer_reads_what_a_notebook_says(name: str) -> None:
    mistakes = wrong_answers(WRONG / f"{name}.diff")[:4]
    assert mistakes
    with GradingWorker() as worker:
        for mistake in mistakes:
            there = worker.grade(find(name), Submission.of_text(mistake.text(), exercises.FILE), 3).criteria
            here = exercises.check(name, mistake.text(), seed=3)["criteria"]
            assert [each["feedback"] for each in here] == [each.words for each in there]


def test_answers_that_cannot_be_read_say_so() -> None:
    assert "SyntaxError" in exercises.check("block-pool", "def (", seed=1)["criteria"][0]["feedback"]
    assert "keep the names" in exercises.check("block-pool", "x = 1", seed=1)["criteria"][0]["feedback"]
    assert exercises.check("block-pool", "print('hello')", seed=1)["printed"] == "hello\n"


@pytest.mark.parametrize("name", exercises.SERVED)
def test_an_answer_serves_as_the_engines_own_part_does(name: str) -> None:
    served = exercises.serve(name, answer_file(find(name), "solution"))
    assert served["notes"] == [] and served["yours"]["end"] == pytest.approx(served["ours"]["end"], rel=0.1)
    [note] = exercises.serve(name, answer_file(find(name), "stub"))["notes"]
    assert "was replaced by the engine's own: NotImplementedError" in note
    with pytest.raises(ConfigError, match="keep the names"):
        exercises.serve(name, "x = 1")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        exercises.serve(name, "1 / 0")

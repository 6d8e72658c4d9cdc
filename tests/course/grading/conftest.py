"""One warm process grades the answers of a test module; isolation is left to test_runner.py."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # wrong_answers

from course.grading.exercise import Exercise
from course.grading.runner import Graded, GradingWorker, Submission

Grade = Callable[..., Graded]


@pytest.fixture(scope="module")
def grade() -> Iterator[Grade]:
    """grade(exercise, source text, seed) -> Graded"""
    with GradingWorker() as worker:

        def one(exercise: Exercise, text: str, seed: int = 0) -> Graded:
            if exercise.missing:
                pytest.skip(exercise.missing)
            return worker.grade(exercise, Submission.of_text(text, "answer.py"), seed)

        yield one


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests write into a home folder of their own."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MINILLM_STRICT", raising=False)

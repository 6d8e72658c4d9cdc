"""A feedback's braces get what they ask for. Otherwise the judge fails just where the learner needs a word."""

import ast
import importlib
import string
from pathlib import Path

import pytest

from course.lab.grading.exercise import Exercise
from course.lab.grading.exercises import catalogue

PLACE = {"Mistake": 0, "expect": 1, "in_time": 2, "timed": 2}
"""Where a text is named."""
BY_TOOLS = {"Mistake": set(), "expect": set(), "in_time": {"done", "limit_s"}, "timed": {"took"}}
"""Fields that its text gets anyway."""
EXERCISES = {exercise.id: exercise for exercise in catalogue()}


def fields_of(text: str) -> set[str]:
    return {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_named_feedback_gets_its_fields(exercise: Exercise) -> None:
    module = importlib.import_module(f"course.lab.grading.exercises.{exercise.id.replace('-', '_')}")
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
        at = PLACE.get(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if at is None or len(node.args) <= at:
            continue
        given = {keyword.arg for keyword in node.keywords} | BY_TOOLS[node.func.id]
        name = node.args[at].value if isinstance(node.args[at], ast.Constant) else None
        if name in exercise.feedback and None not in given:
            missing = fields_of(exercise.feedback[name]) - given - vars(module).keys()
            assert not missing, f"line {node.lineno}: {name!r} wants {missing}"

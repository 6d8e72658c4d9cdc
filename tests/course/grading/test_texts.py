"""A feedback's braces get what they ask for. Otherwise the judge fails just where the learner needs a word."""

import ast
import string
from pathlib import Path

import pytest

from course.grading.exercise import Exercise
from course.grading.exercises import catalogue

CALLS = {"Mistake": (0, set()), "expect": (1, set()), "hold_steady": (2, {"size", "smallest", "times"})}
"""Where a text is named, and the fields that it gets anyway."""
EXERCISES = {exercise.id: exercise for exercise in catalogue()}


def fields_of(text: str) -> set[str]:
    return {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_named_feedback_gets_its_fields(exercise: Exercise) -> None:
    tree = ast.parse(Path(str(exercise.module.__file__)).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for node in [each for each in calls if each.func.id in CALLS]:
        at, by_tools = CALLS[node.func.id]
        given = {keyword.arg for keyword in node.keywords} | by_tools
        name = next((each.value for each in node.args[at : at + 1] if isinstance(each, ast.Constant)), None)
        if name in exercise.feedback and None not in given:
            missing = fields_of(exercise.feedback[name]) - given - vars(exercise.module).keys()
            assert not missing, f"line {node.lineno}: {name!r} wants {missing}"

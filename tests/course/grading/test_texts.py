"""Every feedback has a name that a judge uses, every slip has a text, and a text's braces get what they ask for.
Otherwise the judge fails just where the learner needs a word."""

import ast
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.grading.exercise import Exercise
from course.grading.exercises import catalogue

CALLS = {"Mistake": (0, set()), "expect": (1, set()), "hold_steady": (2, {"size", "smallest", "times"})}
"""Where a text is named, and the fields that it gets anyway."""
SHARED = {"metrics-bug-hunt": ["metrics_slips"]}
"""Modules besides its own in which an exercise's slips are."""
EXERCISES = {exercise.id: exercise for exercise in catalogue()}
EACH = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))


def trees_of(exercise: Exercise) -> list[ast.Module]:
    own = Path(str(exercise.module.__file__))
    return [
        ast.parse(path.read_text()) for path in (own, *(own.with_stem(name) for name in SHARED.get(exercise.id, ())))
    ]


def fields_of(text: str) -> set[str]:
    return {name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


def slips_in(tree: ast.Module) -> Iterator[str]:
    """The keys of the dictionaries that are bound to a name with "slips" in it."""
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any("slips" in ast.unparse(target).lower() for target in targets)
        if named and isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))


@EACH
def test_every_slip_has_its_text_and_every_text_is_used(exercise: Exercise) -> None:
    trees = trees_of(exercise)
    assert not {name for tree in trees for name in slips_in(tree) if " " not in name} - exercise.feedback.keys()
    mentioned = {str(node.value) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    facts = Path(str(exercise.module.__file__)).with_suffix(".toml").read_text()
    own = tomllib.loads(facts)["feedback"]
    assert not [name for name in own if name not in mentioned and name not in facts.partition("[feedback]")[0]]


@EACH
def test_named_feedback_gets_its_fields(exercise: Exercise) -> None:
    calls = [node for node in ast.walk(trees_of(exercise)[0]) if isinstance(node, ast.Call)]
    for node in calls:
        if not isinstance(node.func, ast.Name) or node.func.id not in CALLS:
            continue
        at, by_tools = CALLS[node.func.id]
        given = {keyword.arg for keyword in node.keywords} | by_tools
        name = next((each.value for each in node.args[at : at + 1] if isinstance(each, ast.Constant)), None)
        if name in exercise.feedback and None not in given:
            missing = fields_of(exercise.feedback[name]) - given - vars(exercise.module).keys()
            assert not missing, f"line {node.lineno}: {name!r} wants {missing}"

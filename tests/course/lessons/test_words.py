"""What words.py chooses, words.toml has; what a verdict's sentence wants filled in, it is given."""

import ast
import string
import tomllib
from pathlib import Path

import pytest

from course.lab.finding import LESSONS

ROOMS = sorted(path.parent for path in LESSONS.glob("lesson_1*/words.toml"))


def constants(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_sentence_is_chosen_by_a_name_that_the_code_has(room: Path) -> None:
    words = tomllib.loads((room / "words.toml").read_text())
    known = constants(ast.parse((room / "words.py").read_text()))
    for claim, entry in words.get("claims", {}).items():
        names = entry["texts"].keys() - {"measured"}
        assert not [name for name in names if not known & {name, f"{claim}.{name}"}], claim
    for finding, outcomes in words.get("findings", {}).items():
        assert {finding, *outcomes} <= known, finding


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_verdict_is_given_what_it_names(room: Path) -> None:
    tree = ast.parse((room / "words.py").read_text())
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)} | constants(tree)
    for claim, entry in tomllib.loads((room / "words.toml").read_text()).get("claims", {}).items():
        for name, text in entry["texts"].items():
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
            wanted = {field.partition(".")[0].partition("[")[0] for field in fields}
            assert wanted <= given, f"{claim}.{name}"

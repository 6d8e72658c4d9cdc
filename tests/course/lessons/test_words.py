"""A lesson's code chooses every sentence of its words.toml, and gives each verdict what its sentence names."""

import ast
import string
from pathlib import Path

import pytest

from course.lab.claims import read_words
from course.lab.finding import LESSONS

ROOMS = pytest.mark.parametrize(
    "room", sorted(path.parent for path in LESSONS.glob("lesson_*/words.toml")), ids=lambda room: room.name
)


def nodes(room: Path) -> list[ast.AST]:
    return [node for path in room.glob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def constants(room: Path) -> set[object]:
    return {node.value for node in nodes(room) if isinstance(node, ast.Constant)}


@ROOMS
def test_each_sentence_is_chosen_by_a_name_that_the_code_has(room: Path) -> None:
    known = constants(room)
    for claim, entry in read_words(room, "claims").items():
        for name in entry["texts"].keys() - {"measured"}:
            assert name in known or is_put_together(f"{claim}.{name}", known), f"{claim}.{name}"
    for finding, outcomes in read_words(room, "findings").items():
        assert outcomes.keys() <= known, finding


def is_put_together(name: str, known: set[object]) -> bool:
    """Whether it is one of the strings, or two of them: `say(f"A7.queue_{outcome}")`."""
    return any(name[:i] in known and name[i:] in {*known, ""} for i in range(1, len(name) + 1))


@ROOMS
def test_each_verdict_is_given_what_it_names(room: Path) -> None:
    given = constants(room) | {node.arg for node in nodes(room) if isinstance(node, ast.keyword)}
    for claim, entry in read_words(room, "claims").items():
        for name, text in entry["texts"].items():
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
            assert {field.partition(".")[0].partition("[")[0] for field in fields} <= given, f"{claim}.{name}"

"""Every sentence of a lesson can be reached, and is given every value that it asks for."""

import ast
import string
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.lab.claims import read_words
from course.lab.finding import LESSONS

ROOMS = sorted(path.parent for path in LESSONS.glob("lesson_*/words.toml"))


def fields(template: str) -> set[str]:
    """Names that a template fills in: `{wait:seconds}` asks for wait, `{fcfs[0]}` for fcfs."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
    return {name.replace("[", ".").partition(".")[0] for name in names}


def calls(room: Path, *functions: str) -> Iterator[ast.Call]:
    for path in room.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                yield node


def given(call: ast.Call) -> set[str] | None:
    """Names of the values that a call passes; None = it passes some in a dictionary."""
    names = [keyword.arg for keyword in call.keywords]
    return None if None in names else set(names)


def constants(room: Path) -> set[str]:
    """Every string that stands in a room's code."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in room.glob("*.py"))
    return {
        n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def is_put_together(name: str, named: set[str]) -> bool:
    """Whether it is one of the strings, or two of them: `say(f"A7.queue_{outcome}")`."""
    return any(name[:i] in named and name[i:] in {*named, ""} for i in range(1, len(name) + 1))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_sentence_is_dead(room: Path) -> None:
    named = constants(room)
    for claim, entry in read_words(room, "claims").items():
        for text in entry["texts"].keys() - {"measured"}:
            assert text in named or is_put_together(f"{claim}.{text}", named), f"{claim}.{text}"
    for finding, outcomes in read_words(room, "findings").items():
        assert {finding, *outcomes} <= named, finding


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_findings_are_given_what_they_tell(room: Path) -> None:
    findings = read_words(room, "findings")
    for call in calls(room, "tell"):
        finding, outcome, values = call.args[1], call.args[2], given(call)
        if values is None or not isinstance(finding, ast.Constant):
            continue
        outcomes = findings[finding.value]
        if isinstance(outcome, ast.Constant):
            outcomes = {outcome.value: outcomes[outcome.value]}
        for name, told in outcomes.items():
            assert fields(told["here"]) <= values, f"{finding.value}.{name}"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_claims_are_given_what_they_say(room: Path) -> None:
    passed: dict[str, set[str]] = defaultdict(set)
    partly_hidden = set()
    for call in calls(room, "conclude", "say"):
        values = given(call)
        for named in ast.walk(call.args[0]):  # one name, or one of two
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                claim = named.value.partition(".")[0]
                partly_hidden |= {claim} if values is None else set()
                passed[claim] |= values or set()
    for claim, entry in read_words(room, "claims").items():
        asked = set().union(*map(fields, entry["texts"].values()))
        assert claim in partly_hidden or asked <= passed[claim], claim

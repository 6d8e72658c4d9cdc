"""The architecture page, and the one that reads vLLM beside it, name files and functions: each of them is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, BESIDE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "reading_vllm.md"
NAMED = re.compile(r"\[`([^`]+)`\]\((\.\./[^)]+)\)")
"""[`Class.method`](../file.py), or [`file.py`](../file.py)."""
SYMBOL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


def named(page: Path) -> list[tuple[str, Path]]:
    return [(name, (page.parent / link).resolve()) for name, link in NAMED.findall(page.read_text(encoding="utf-8"))]


def symbols(file: Path) -> set[str]:
    """What a file defines: functions, classes, names, and what is in its classes."""
    return set(_symbols(ast.parse(file.read_text())))


def _symbols(tree: ast.Module | ast.ClassDef, within: str = "") -> list[str]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(within + node.name)
        if isinstance(node, ast.ClassDef):
            found += _symbols(node, f"{node.name}.")
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(named(PAGE)) > 60 and len(named(BESIDE)) > 15
    assert "Scheduler.schedule" in symbols(ROOT / "minillm" / "core" / "scheduler.py")
    assert "Scheduler.sing" not in symbols(ROOT / "minillm" / "core" / "scheduler.py")


@pytest.mark.parametrize("page", [PAGE, BESIDE], ids=lambda page: page.stem)
def test_every_file_and_function_that_is_named_exists(page: Path) -> None:
    for name, target in named(page):
        assert target.exists(), f"{name}: {target.relative_to(ROOT)} is gone"
        if name.rstrip("/").split("/")[-1] == target.name:
            continue  # the file itself
        assert SYMBOL.fullmatch(name), f"{name}: neither the file that it links to nor a symbol"
        assert name in symbols(target), f"{target.relative_to(ROOT)} has no {name}"


def test_the_core_runs_by_itself_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.S)
    [shown] = re.findall(r"```text\n(.*?)```", page, re.S)
    exec(compile(program, PAGE, "exec"), {"__name__": "architecture"})
    assert capsys.readouterr().out == shown

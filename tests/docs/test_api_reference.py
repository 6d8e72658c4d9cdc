"""The API reference: everything that is public says what it is, and the pages are built without a warning."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import minillm

SOURCES = sorted((ROOT / "minillm").rglob("*.py"))


def test_public_names_have_docstrings() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for file in SOURCES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert not tree.body or ast.get_docstring(tree), file
        public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
        assert [node.name for node in public if not ast.get_docstring(node)] == [], file


@pytest.mark.parametrize("name", minillm.__all__)
def test_what_the_package_exports_is_explained_in_full(name: str) -> None:
    exported = getattr(minillm, name)
    members = {key: value for key, value in vars(exported).items() if not key.startswith("_")}
    ours = {}
    for key, value in members.items():
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if inspect.isfunction(function):
            ours[key] = function
    assert inspect.getdoc(exported)
    assert [key for key, value in ours.items() if not value.__doc__] == []


@pytest.mark.slow
def test_it_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "docs.api_reference", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr[-3000:]
    assert "warn" not in built.stderr.lower(), built.stderr[-3000:]
    pages = {str(page.relative_to(tmp_path)) for page in tmp_path.rglob("*.html")}
    assert {"minillm.html", "minillm/core/scheduler.html"} <= pages
    first = (tmp_path / "minillm.html").read_text()
    assert all(f'id="{name}"' in first for name in minillm.__all__)

"""A Python that is too old for minillm is told so, in a syntax that it reads."""

import ast
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.host import pythons
from minillm.host.pythons import HOW_TO_GET_ONE, NEWEST_PYTHON, OLDEST_PYTHON, advice, end_if_too_old

ROOT = Path(pythons.__file__).parents[2]
READ_BY_ALL = (
    "minillm/__init__.py",
    "minillm/kernels/__init__.py",
    "minillm/host/before_setup.py",
    "minillm/host/pythons.py",
    "minillm/doctor/__init__.py",
    "minillm/doctor/__main__.py",
)
"""What is imported until the version was looked at."""
STANDARD = {"importlib", "io", "json", "os", "shutil", "subprocess", "sys", "typing"}
THERE_IN_3_6 = {*STANDARD, "minillm.host.pythons"}
NAMES_OF_TYPES = {"Any", "bool", "int", "str"}
OLD_PYTHONS = [f"3.{minor}" for minor in range(6, OLDEST_PYTHON[1])]


@functools.cache
def old_python(version: str) -> str | None:
    """The path of such a Python, of the system's or of pyenv's. None: there is none."""
    places = [*Path.home().glob(f".pyenv/versions/{version}.*/bin"), *os.environ["PATH"].split(os.pathsep)]
    for path in filter(None, (shutil.which(f"python{version}", path=str(place)) for place in places)):
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:  # not a mere name of pyenv's
            return path
    return None


@pytest.mark.parametrize(
    ("version", "module"),
    [*((version, "minillm.doctor") for version in OLD_PYTHONS), (OLD_PYTHONS[-1], "minillm.host.before_setup")],
)
def test_an_old_python_says_which_one_to_get(version: str, module: str) -> None:
    if (python := old_python(version)) is None:
        pytest.skip(f"there is no Python {version} here")
    command = [python, "-B", "-m", module]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert f"minillm needs Python 3.11 to 3.14; this is {version}." in ended.stderr
    assert "make setup PYTHON=" in ended.stderr


@pytest.mark.parametrize("name", READ_BY_ALL)
def test_what_is_imported_first_is_read_by_python_3_6(name: str) -> None:
    module = ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 6))
    for statement in module.body:
        if isinstance(statement, ast.Import):
            assert {alias.name for alias in statement.names} <= THERE_IN_3_6
        if isinstance(statement, ast.ImportFrom):
            assert statement.module in THERE_IN_3_6
        if isinstance(statement, ast.FunctionDef):  # annotations are computed: no `int | None`
            annotations = [each.annotation for each in statement.args.args] + [statement.returns]
            for each in filter(None, annotations):
                is_name = isinstance(each, ast.Name) and each.id in NAMES_OF_TYPES
                assert is_name or isinstance(each, ast.Constant), ast.unparse(each)


def test_a_newer_python_beside_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", {"python3.12": sys.executable}.get)
    assert f"{sys.executable} -m minillm.doctor" in advice()
    monkeypatch.setattr(shutil, "which", {"python3.12": shutil.which("false")}.get)
    assert HOW_TO_GET_ONE in advice(), "that one can't be started"


@pytest.mark.parametrize("version", [OLDEST_PYTHON, NEWEST_PYTHON])
def test_a_python_that_was_tried_goes_on(version: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    end_if_too_old()
    monkeypatch.setattr(sys, "version_info", (3, 10, 99, "final", 0))
    with pytest.raises(SystemExit, match=r"this is 3\.10\.99"):
        end_if_too_old()

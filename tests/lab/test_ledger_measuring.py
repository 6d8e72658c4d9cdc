"""A result is called old when the code that measured it has changed."""

import ast
import importlib
from pathlib import Path

import pytest

from course.lab.ledger import measuring
from course.lab.ledger.measuring import fingerprint
from course.lab.ledger.registry import REGISTRY

LESSONS = {entry.lesson for entry in REGISTRY.values()}


def test_the_fingerprint_covers_the_lessons_own_code(tmp_path: Path) -> None:
    claims, package = tmp_path / "claims" / "lesson_77.py", tmp_path / "lesson_77"
    for folder in (claims.parent, package):
        folder.mkdir()
    claims.write_text("a = 1")
    seen = {fingerprint(claims)}
    for content in ("b = 1", "b = 2"):
        (package / "part.py").write_text(content)
        seen.add(fingerprint(claims))
    assert len(seen) == 3 and fingerprint(claims) in seen


def test_the_fingerprint_covers_other_code_that_an_experiment_runs(tmp_path: Path) -> None:
    claims = tmp_path / "claims" / "lesson_77.py"
    for folder in (claims.parent, tmp_path / "tools" / "inner"):
        folder.mkdir(parents=True)
    claims.write_text("a = 1")
    seen = {fingerprint(claims, ("tools", "one.py"))}
    for path in ("tools/inner/part.py", "one.py"):
        (tmp_path / path).write_text("b = 1")
        seen.add(fingerprint(claims, ("tools", "one.py")))
    assert len(seen) == 3


SHARED = {"big", "claims", "lab", "run", "scale", "style"}
"""Of course.lab, what every experiment stands on."""


@pytest.mark.parametrize("lesson", sorted(LESSONS))
def test_experiments_name_the_code_that_they_take_from_elsewhere(lesson: str) -> None:
    module = importlib.import_module(f"course.lab.claims.lesson_{lesson}")
    named = getattr(module, "EXPERIMENT", ())
    lab = Path(module.__file__).parent.parent
    assert all((lab / name).exists() for name in named)
    for name in imported(Path(module.__file__)):
        own = name.split(".")[0] in (*SHARED, f"lesson_{lesson}")
        assert own or any(f"{name.replace('.', '/')}.py" == each for each in named), name


def imported(source: Path) -> set[str]:
    """Modules of course.lab that a file imports, such as "lesson_02.simulated"."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("course.lab"):
            package = Path("/".join(node.module.split(".")))
            for alias in node.names:
                is_module = (Path(measuring.__file__).parents[3] / package / f"{alias.name}.py").is_file()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return {name.removeprefix("course.lab.") for name in found}

"""A result is called old when the code that measured it has changed."""

import ast
from pathlib import Path

import pytest

from course.lab.claims import REGISTRY
from course.lessons.lesson_14 import measuring
from course.lessons.lesson_14.measuring import fingerprint

LESSONS = {entry.lesson for entry in REGISTRY.values()}


def test_the_fingerprint_covers_the_lessons_own_code_and_other_code_that_an_experiment_runs(tmp_path: Path) -> None:
    package = tmp_path / "lesson_77"
    for folder in (package, tmp_path / "tools" / "inner"):
        folder.mkdir(parents=True)
    (package / "words.py").write_text("a = 1")
    others = ("tools", "one.py")
    seen = {fingerprint(package, others, tmp_path)}
    for path in ("lesson_77/part.py", "tools/inner/part.py", "one.py", "one.toml"):
        (tmp_path / path).write_text("b = 1")
        seen.add(fingerprint(package, others, tmp_path))
    assert len(seen) == 5 and fingerprint(package, others, tmp_path) in seen


SHARED = {
    f"lab.{name}" for name in ("simulated_70b", "claims", "finding", "lab", "noise", "run", "scale", "style", "waiting")
}
"""Modules of course.lab that every experiment stands on."""


@pytest.mark.parametrize("lesson", sorted(LESSONS))
def test_experiments_name_the_code_that_they_take_from_elsewhere(lesson: str) -> None:
    module = measuring.words_of(lesson)
    named = getattr(module, "EXPERIMENT", ())
    assert all((measuring.COURSE / name).exists() for name in named)
    for name in imported(Path(module.__file__)):
        own = name in SHARED or name.startswith(f"lessons.lesson_{lesson}.")
        assert own or any(f"{name.replace('.', '/')}.py" == each for each in named), name


def imported(source: Path) -> set[str]:
    """Modules of the lab and of lessons that a file imports, such as "lessons.lesson_02.simulated"."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("course.lab", "course.lessons")):
            package = Path("/".join(node.module.split(".")))
            for alias in node.names:
                is_module = (measuring.COURSE.parent / package / f"{alias.name}.py").is_file()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return {name.removeprefix("course.") for name in found}

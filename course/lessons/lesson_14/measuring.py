"""Which experiment measures a claim: what `MEASURE` of each lesson's words.py says."""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from course.lab.claims import Claim
from course.lab.lab import Lab

COURSE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Experiment:
    """What measures one claim."""

    lesson: str
    run: Callable[[Lab], Claim]
    code: str
    """Fingerprint of its lesson's code: a result of other code is an old one."""


def find_experiments() -> dict[str, Experiment]:
    """By claim id, from the words.py of every lesson."""
    found: dict[str, Experiment] = {}
    for folder in sorted((COURSE / "lessons").glob("lesson_*")):
        lesson = folder.name.removeprefix("lesson_")
        module = words_of(lesson)
        code = fingerprint(folder, getattr(module, "EXPERIMENT", ()))
        for claim, run in module.MEASURE.items():
            found[claim] = Experiment(lesson, run, code)
    return found


def words_of(lesson: str) -> ModuleType:
    """A lesson's words.py, or claims.py where it has none."""
    name = "words" if (COURSE / "lessons" / f"lesson_{lesson}" / "words.py").is_file() else "claims"
    return importlib.import_module(f"course.lessons.lesson_{lesson}.{name}")


def fingerprint(lesson: Path, others: Sequence[str] = (), course: Path = COURSE) -> str:
    """Hash of a lesson's code and words, and of other code that its experiments run.

    Args:
        lesson: its folder.
        others: modules (each with its .toml) and folders under `course`; the lesson's words.py lists them as
            EXPERIMENT.
    """
    found = hashlib.sha256()
    for part in (lesson, *(course / name for name in others)):
        for path in sorted(part.rglob("*") if part.is_dir() else part.parent.glob(f"{part.stem}.*")):
            if path.suffix in (".py", ".toml"):  # a claim's words are in the .toml beside its module
                found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]

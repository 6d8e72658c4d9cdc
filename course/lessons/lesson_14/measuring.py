"""Which experiment measures a claim: what each lesson's `claims.MEASURE` says."""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.lab.claims import Claim
from course.lab.lab import Lab

COURSE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Experiment:
    """What measures one claim."""

    lesson: str
    run: Callable[[Lab], Claim]
    code: str
    """Of its lesson's code, a fingerprint: a result of other code is an old one."""


def find_experiments() -> dict[str, Experiment]:
    """By claim id, from the `claims` of every lesson's package."""
    found: dict[str, Experiment] = {}
    for package in sorted((COURSE / "lessons").glob("lesson_*")):
        if (package / "claims.py").is_file():
            module = importlib.import_module(f"course.lessons.{package.name}.claims")
            code = fingerprint(package, getattr(module, "EXPERIMENT", ()))
            for claim, run in module.MEASURE.items():
                found[claim] = Experiment(package.name.removeprefix("lesson_"), run, code)
    return found


def fingerprint(package: Path, others: Sequence[str] = (), course: Path = COURSE) -> str:
    """Of a lesson's package, and of other code that its experiments run.

    Args:
        others: modules (each with its .toml) and folders under `course`; the lesson's claims list them as EXPERIMENT.
    """
    found = hashlib.sha256()
    for part in (package, *(course / name for name in others)):
        for path in sorted(part.rglob("*") if part.is_dir() else part.parent.glob(f"{part.stem}.*")):
            if path.suffix in (".py", ".toml"):  # a claim's words are in the .toml beside its module
                found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]

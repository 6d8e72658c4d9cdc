"""Which experiment measures a claim: whatever `course.lab.claims.lesson_NN.MEASURE` says, for every lesson there is."""

import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course.lab import claims
from course.lab.claims import Claim
from course.lab.lab import Lab


@dataclass(frozen=True)
class Experiment:
    """What measures one claim."""

    lesson: str
    run: Callable[[Lab], Claim]
    code: str
    """Of its lesson's code, a fingerprint: a result of other code is an old one."""


def find_experiments() -> dict[str, Experiment]:
    """By claim id, from every module `lesson_NN` of `course.lab.claims`."""
    found: dict[str, Experiment] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(claims.__path__)):
        if name.startswith("lesson_"):
            module = importlib.import_module(f"{claims.__name__}.{name}")
            code = fingerprint(Path(module.__file__), getattr(module, "EXPERIMENT", ()))
            for claim, run in module.MEASURE.items():
                found[claim] = Experiment(name.removeprefix("lesson_"), run, code)
    return found


def fingerprint(claims_file: Path, others: Sequence[str] = ()) -> str:
    """Of a lesson's claims, of the lesson's own package of the same name, if it has one, and of other code they run.

    Args:
        others: files and folders under course/lab; the claims' module lists them as EXPERIMENT.
    """
    lab = claims_file.parent.parent
    found = hashlib.sha256()
    for part in (claims_file, lab / claims_file.stem, *(lab / name for name in others)):
        for path in [part] if part.is_file() else sorted(part.rglob("*.py")):
            found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]

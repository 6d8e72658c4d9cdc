"""Which experiment measures a claim: whatever `course.lab.claims.lesson_NN.MEASURE` says, for every lesson there is."""

import hashlib
import importlib
import pkgutil
from collections.abc import Callable
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
    """Of the module it is in, a fingerprint: a result of other code is an old one."""


def find_experiments() -> dict[str, Experiment]:
    """By claim id, from every module `lesson_NN` of `course.lab.claims`."""
    found: dict[str, Experiment] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(claims.__path__)):
        if name.startswith("lesson_"):
            module = importlib.import_module(f"{claims.__name__}.{name}")
            code = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()[:12]
            for claim, run in module.MEASURE.items():
                found[claim] = Experiment(name.removeprefix("lesson_"), run, code)
    return found

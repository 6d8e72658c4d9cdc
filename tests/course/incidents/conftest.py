"""Incidents that several tests look at, drawn once each."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # players

from course.incidents import Incident

Draw = Callable[[str, int], Incident]


@functools.lru_cache(maxsize=16)
def _drawn(cause: str, seed: int) -> Incident:
    return Incident.generate(seed, difficulty=1 + seed % 3, cause=cause)


@pytest.fixture
def draw() -> Draw:
    """An incident of a cause; seed and difficulty go together. Not to be played on: see `Incident.fresh`."""
    return _drawn

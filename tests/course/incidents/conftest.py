"""Incidents that several tests look at, drawn once each."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_integrity import check_conservation

sys.path.insert(0, str(Path(__file__).parent))  # players

from course.incidents import Incident, generate, marking, outcome
from course.incidents.convict import read_off
from course.incidents.generate import Hidden
from course.incidents.service import ServicePlay, SimulatedService, play

Draw = Callable[[str, int], Incident]
Reading = tuple[set[str], set[str]]


def conserving_play(service: SimulatedService, seed: int, watched: bool = False) -> ServicePlay:
    """A play in which nobody got lost."""
    played = play(service, seed, watched)
    check_conservation(played.run)
    assert len(played.run.records) == len(service.workload(seed))
    return played


@pytest.fixture(autouse=True)
def _every_play_conserves(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (generate, outcome):
        monkeypatch.setattr(module, "play", conserving_play)


@pytest.fixture(scope="session")
def _readings() -> dict[int, tuple[Hidden, Reading]]:
    """What was read off incidents, by their identity."""
    return {}


@pytest.fixture(autouse=True)
def _each_is_read_off_once(monkeypatch: pytest.MonkeyPatch, _readings: dict[int, tuple[Hidden, Reading]]) -> None:
    """Every question is looked at for it, and one incident is graded many times."""

    def read(hidden: Hidden) -> Reading:
        if id(hidden) not in _readings:
            _readings[id(hidden)] = hidden, read_off(hidden)
        return _readings[id(hidden)][1]

    monkeypatch.setattr(marking, "read_off", read)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at is the moment of the page, whatever the clock says: later ones would be simulated each."""
    monkeypatch.setattr(Hidden, "scene_at", lambda hidden, minute: hidden.scene)


@functools.lru_cache(maxsize=16)
def _drawn(cause: str, seed: int) -> Incident:
    return Incident.generate(seed, difficulty=1 + seed % 3, cause=cause)


@pytest.fixture
def draw() -> Draw:
    """An incident of a cause; seed and difficulty go together. Not to be played on: see `Incident.fresh`."""
    return _drawn

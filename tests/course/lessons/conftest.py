"""What the tests of several lessons begin with: the short form, few requests at 70B, a server."""

from collections.abc import Iterator

import pytest

from course.lab.lab import Lab
from course.lab.server import LabServer
from course.lessons.lesson_11 import fleet


@pytest.fixture(autouse=True)
def full_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says: a quarter of a simulation's requests is another simulation."""
    monkeypatch.delenv("MINILLM_SHORT", raising=False)


@pytest.fixture
def short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")


@pytest.fixture
def few_requests(short_form: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And few slots: the shapes stay, and a run takes a tenth of a second."""
    monkeypatch.setattr(fleet, "SLOTS", 40)
    monkeypatch.setattr(fleet, "LEAST", 80)


@pytest.fixture
def server(tiny_lab: Lab) -> Iterator[LabServer]:
    with LabServer(tiny_lab) as running:
        yield running

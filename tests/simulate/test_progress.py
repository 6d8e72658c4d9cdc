"""The progress bar: only on a terminal."""

import io
import sys

import pytest

from minillm.core.batch import ScheduledBatch
from minillm.simulate.progress import Progress

BATCH = ScheduledBatch(step_id=1, requests=(), saves=(), loads=(), preempted=(), timed_out=())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_watched_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert Progress().begin("a run", 10.0) is None


def test_quick_runs_stay_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Progress() as progress:
        for until in (20.0, 0.0):  # requests that all come at once have no end to divide by
            watch = progress.begin("40 requests", until)
            watch(BATCH, None, 5.0)
    assert terminal.getvalue() == ""

"""Other work on the machine is told from one's own."""

from collections import namedtuple

import pytest

from minillm.host import bystanders
from minillm.host.bystanders import Bystanders, is_busy

Times = namedtuple("Times", "user system idle iowait guest")


def test_the_share_is_of_other_processes_and_of_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds on two processors: 14 s busy, 6 s idle or waiting for a disk. Of the 14, this process took 11."""
    moments = iter([(Times(5, 1, 100, 7, 3), 2.0), (Times(17, 3, 104, 9, 8), 13.0)])

    def look() -> Times:
        times, own = next(moments)
        monkeypatch.setattr(bystanders.time, "process_time", lambda: own)
        return times

    monkeypatch.setattr(bystanders.psutil, "cpu_times", look)
    assert Bystanders().share() == pytest.approx(3 / 20)


def test_a_look_at_this_machine_is_a_share() -> None:
    assert 0 <= Bystanders().share() <= 1 and is_busy() in (True, False)

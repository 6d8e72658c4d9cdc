"""A deploy that is watched and undone: what the rule sees, and when."""

import math

import numpy as np
import pytest

from course.lessons.lesson_11b import canary

BAD, NOTHING = "no CUDA graphs", "nothing (an A/A test)"


def test_a_rule_fires_on_what_it_could_know_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second request is late, from the 10th on; each is known a second after it was sent."""
    sent = np.arange(40.0)
    late = (np.arange(40) >= 10) & (np.arange(40) % 2 == 0)
    monkeypatch.setattr(canary, "watched", lambda change, rate, seed: (sent + 1, late, sent))
    found = canary.rehearse(BAD, 1.0, window=4, limit=0.25, undo_s=5.0)
    assert found.detected == 13.0  # requests 9 to 12: two of four are late, the second known at 13 s
    assert found.undone == 18.0 and found.harmed == 4  # 10, 12, 14, 16; the one sent at 18 s meets the old settings
    assert math.isinf(canary.rehearse(BAD, 1.0, window=4, limit=0.5, undo_s=5.0).detected)


def test_a_mistake_is_rolled_back_and_nothing_is_not() -> None:
    found, control = (canary.rehearse(change, 3.0, 50, 0.2, 5.0) for change in (BAD, NOTHING))
    assert 50 / 3 / 1.5 < found.detected < 60 < control.detected == math.inf
    assert found.harmed > 0 == control.harmed
    assert canary.until_undone().answer == found.undone
    assert "undone after" in canary.draw(BAD, 3.0, 200, 0.2, "a flag, read at run time").description

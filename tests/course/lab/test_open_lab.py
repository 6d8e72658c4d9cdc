"""`open_lab`: a notebook has one lab."""

from types import SimpleNamespace

import pytest

from course.lab import Lab, lab, open_lab


def test_a_cell_that_is_run_again_closes_the_lab_before(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    monkeypatch.setattr(lab, "get_ipython", lambda: SimpleNamespace(user_ns=names))
    closed: list[Lab] = []
    monkeypatch.setattr(Lab, "close", lambda self: closed.append(self))
    first = names["lab"] = open_lab()
    assert closed == []
    second = open_lab(max_num_seqs=2)
    assert closed == [first]
    assert second.defaults["max_num_seqs"] == 2
    names["lab"] = "a laboratory"
    open_lab()
    assert closed == [first]


def test_a_bet_that_was_locked_stays_locked_when_the_first_cell_is_run_again() -> None:
    first = Lab(short=True)
    bet = first.predict("eight", "What grows?", ["queue", "decode"]).choose("queue").lock()
    second = Lab(short=True, instead_of=first)
    assert second.predict("eight", "What grows?", ["queue", "decode"]) is bet
    second.predict("nine", "And now?")
    assert "nine" not in first._predictions, "each lab has its own from here"


def test_outside_a_notebook_it_is_a_lab() -> None:
    assert isinstance(open_lab(), Lab)

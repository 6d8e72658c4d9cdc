"""Lesson 13: the dump's arithmetic, on the simulator."""

import pytest

from course.lab.lab import Lab
from course.lessons.lesson_13 import words


def test_a17_arithmetic_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    verdict = words.MEASURE["A17"](Lab(short=True))
    layers = 40 * (4 * 5120 * 5120 + 3 * 5120 * 13824)
    asked = 60 * 2200 * 2 * layers / (2 * 312e12)
    assert f"ask for {asked:.2f} times" in verdict.measured
    assert verdict.verdict.startswith("wrong for one server")

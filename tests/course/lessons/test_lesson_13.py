"""Lesson 13: the dump's arithmetic, on the simulator."""

import re

import pytest

from course.lab.lab import Lab
from course.lessons.lesson_13 import words


def test_a17_arithmetic_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    verdict = words.MEASURE["A17"](Lab(short=True))
    layers = 40 * (4 * 5120 * 5120 + 3 * 5120 * 13824)
    asked = 60 * 2200 * 2 * layers / (2 * 312e12)
    assert f"ask for {asked:.2f} times" in verdict.measured
    held = 60 * 179 * 0.08 * (2200 + 90) * 2 * 40 * 5120 * 2  # bytes of those that decode: the others may wait
    told = re.search(r"hold ([\d.]+) times the KV", verdict.measured)
    assert told and float(told[1]) == pytest.approx(
        held / 125e9, rel=0.05
    )  # of 160 GB, less weights and what is spared
    assert verdict.verdict.startswith("wrong, for one server")

"""A17, A18, D23: two post-mortems and an interview question, on the simulator."""

from dataclasses import replace

import pytest

from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lessons.lesson_12.claims import CHUNKS, LIMITED, STATIC, Line, Tail, a18, d23, tail_of
from course.lessons.lesson_13.claims import MEASURE, OUTPUT, Fit, a17


def line(wait: float) -> Line:
    return Line(wait, prefill=0.5)


def test_a18_separates_the_diagnosis_from_the_cure() -> None:
    def claim(seats_48: float, after: float = 10.0) -> Claim:
        return a18(line(0.1), {"pool": line(after)}, {"pool": {48: line(seats_48)}}, line(0.2))

    assert claim(4.0).verdict.startswith("holds here") and "48 slots with pool" in claim(4.0).verdict
    assert claim(20.0).verdict.startswith("holds only when")
    assert claim(0.5, after=0.5).verdict.startswith("not shown")


def tails(static: float, chunks: float) -> dict[str, Tail]:
    return {STATIC: Tail(1.0, static, 2 * static), CHUNKS: Tail(1.0, chunks, chunks)}


def test_d23_looks_at_the_short_ones() -> None:
    assert d23(tails(1.5, 1.2)).verdict.startswith("not shown")
    assert d23(tails(4.0, 3.0)).verdict.startswith("holds only when read as a trend: × 8.0")
    assert d23(tails(4.0, 1.2)).verdict.startswith("holds only when")


def test_a_limit_on_prompts_takes_the_straggler_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    limited, static = tail_of(LIMITED), tail_of(STATIC)
    assert limited.on_others == pytest.approx(1.0) and static.on_others > 1.5


def test_a17_arithmetic_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    verdict = MEASURE["A17"](Lab(short=True))
    layers = 40 * (4 * 5120 * 5120 + 3 * 5120 * 13824)
    asked = 60 * 2200 * 2 * layers / (2 * 312e12)
    assert f"ask for {asked:.2f} times" in verdict.measured
    assert verdict.verdict.startswith("wrong for one server")


def test_a17_verdicts() -> None:
    fit = Fit(5.0, 16.0, 4.0, 1.0, 20.0, 0.15, 0.15 * (OUTPUT - 1), 8.0, 12.0)
    assert "15 times what it can do" in a17(fit).verdict
    enough = replace(fit, capacity=70.0, decode_p99=fit.product)
    assert a17(enough).verdict.startswith("holds")

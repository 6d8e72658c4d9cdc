"""Lesson 05b: the transfer's arithmetic, the steps of the picture, and the split fleet."""

import itertools

import pytest
from asserting import rewards, shows

from course.lab.simulated_70b import itl, ttft
from course.lessons.lesson_05b import pictures, words
from course.lessons.lesson_05b import run as lesson
from course.lessons.lesson_05b.check import checks


def test_the_transfer_is_bytes_over_bandwidth() -> None:
    assert lesson.token_bytes() == 2 * 80 * 8 * 128 * 2
    assert lesson.transfer_s(4096, 400) == pytest.approx(0.0268, rel=0.01)
    assert lesson.transfer_s(8192, 400) == 2 * lesson.transfer_s(4096, 400) == lesson.transfer_s(8192, 800) * 2
    assert lesson.transfer_s(4096, 10) > lesson.prefill_s(4096) > 5 * lesson.transfer_s(4096, 400)
    shows(pictures.draw_transfer("400 Gb/s", 4096), "1.34 GB")


@pytest.mark.parametrize("chunk", [4, 7, pictures.TOKENS])
def test_every_prompt_token_is_computed_once_and_chunks_bound_the_gap(chunk: int) -> None:
    steps = pictures.steps_of(chunk)
    assert sum(step.prefill for step in steps) == pictures.TOKENS * len(pictures.PROMPTS)
    assert pictures.longest_gap(steps) == pytest.approx(1 + pictures.PER_TOKEN * chunk)
    assert all(a.start + a.seconds == pytest.approx(b.start) for a, b in itertools.pairwise(steps))
    shows(pictures.draw_budget(chunk), "split: decode GPU")


def test_a_split_fleet_streams_smoothly_and_one_prefill_replica_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    whole, chunked, apart = (itl(run, 99) for run in lesson.ways(8.0).values())
    assert apart < chunked < whole
    assert words.smoother(lesson.ways(8.0)).answer == whole / apart
    one, three = (ttft(list(lesson.ways(24.0, n).values())[-1], 99) for n in (1, 3))
    assert one > 3 * three


def test_the_check() -> None:
    rewards(checks(), 1.342, 0.0268, "more prefill replicas")

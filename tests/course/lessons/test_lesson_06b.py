"""Lesson 06b: experts that a step reads, ranks that wait for each other, room for latent KV."""

import pytest
from asserting import rewards

from course.lab.lab import Lab
from course.lessons.lesson_06b import pictures, run, words
from course.lessons.lesson_06b.check import checks


def test_more_tokens_read_more_experts(tiny_lab: Lab, smollm_path) -> None:
    lab = Lab(short=True)
    found = run.routed(lab, (1, 64), steps=2)
    lab.close()
    assert found[1] == pytest.approx(8 / 128) and found[1] < found[64] <= 1
    assert run.share_bet(found).answer == pytest.approx(100 * found[64])


@pytest.mark.parametrize(("share", "words_of_it"), [(0.5, "favourites"), (0.98, "close to the")])
def test_favourites_are_told_from_chance(share: float, words_of_it: str) -> None:
    assert words_of_it in words.shares({1: 0.06, 64: share}).here


def test_expected_experts() -> None:
    assert run.expected(8, 2, 1) == 0.25 and run.expected(128, 8, 1000) == pytest.approx(1)
    for model in pictures.MODELS:
        assert f"{model}: a step of 8" in pictures.draw_share({1: 0.1, 64: 0.5}, model, 8).title


@pytest.mark.parametrize("skew", [1.0, 1.5])
def test_ranks_share_the_rows(skew: float) -> None:
    rows = [each.rows for each in run.work_by_rank(8, 400, skew)]
    assert sum(rows) == 400 * run.CHOSEN
    assert rows[0] / (sum(rows) / 8) == pytest.approx(skew, rel=0.1)


def test_ranks_read_more_evenly_than_they_multiply() -> None:
    """A rank's weights are read once, however many tokens chose them."""
    work = run.work_by_rank(8, 32, 1.0)
    rows, experts = (max(each) / (sum(each) / 8) for each in zip(*((w.rows, w.experts) for w in work)))
    assert rows > 1.2 > 1.15 > experts and all(each.experts <= 16 for each in work)
    assert f"multiplies {rows:.2f}" in pictures.draw_ranks(8, 32, 1.0).title
    assert sum(each.experts for each in run.work_by_rank(8, 1, 1.0)) == run.CHOSEN


def test_data_parallel_attention_has_more_room() -> None:
    room = run.room()
    assert 4 < room[run.PARALLEL] / room[run.SLICED] < 8 == pytest.approx(room[run.STRIPED] / room[run.SLICED])
    assert 11e9 < run.attention_bytes() < 12e9  # 187 million in each of 61 layers
    assert "times the KV" in pictures.draw_room("h200", 8).title
    assert "70.3 kB" in str(pictures.kv_table()) and "× " in str(pictures.dense_table())


def test_the_check_rewards_what_is_right() -> None:
    ways = run.room()
    rewards(checks(), 1 - 0.75**4, 8 * 70.272, ways[run.PARALLEL] / ways[run.SLICED])


def test_wide_ep_trades_weights_for_rows_and_sends_as_much() -> None:
    eight, *_, widest = run.wide_shares(64)
    assert eight.bytes / widest.bytes == widest.rows / eight.rows == widest.gpus / eight.gpus
    assert eight.rows == 64 * 8 * 8 / 256 and widest.sent < 1.2 * eight.sent
    assert run.wide_shares(128)[0].rows == 2 * eight.rows

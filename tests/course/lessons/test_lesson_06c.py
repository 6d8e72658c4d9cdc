"""Lesson 06c: what a request keeps, what a step reads, and what a snapshot costs. By hand, from published sizes."""

import pytest
from asserting import rewards, shows

from course.lessons.lesson_06c import pictures, run, words
from course.lessons.lesson_06c.check import checks
from course.lessons.lesson_06c.run import HYBRID, MODELS, SPARSE, Snapshots, all_full, kept, read

QWEN = MODELS[HYBRID]
STATE = 45 * 4 * (64 * 128 * 128 + 3 * (2 * 16 * 128 + 64 * 128))
"""Bytes: 45 layers in float32, a matrix of 128 x 128 for each of 64 heads, and three inputs of the convolution."""
PER_TOKEN = 2 * 2 * 256 * 2
"""Bytes of a layer with keys and values: two heads of 256 numbers, in 16 bits."""


def test_a_hybrid_keeps_a_flat_fee_and_a_quarter() -> None:
    assert QWEN.fixed_bytes == STATE
    assert kept(QWEN, 1000) == STATE + 15 * PER_TOKEN * 1000 and kept(all_full(QWEN), 1000) == 60 * PER_TOKEN * 1000
    assert read(QWEN, 1000) == kept(QWEN, 1000) + STATE, "a state is written back"
    assert run.even_tokens(QWEN) == pytest.approx(STATE / (45 * PER_TOKEN))


@pytest.mark.parametrize(("tokens", "answer"), [(1000, 2), (2100, 1), (100_000, 0)])
def test_the_bet_depends_on_the_length(tokens: int, answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHAT", tokens)
    assert run.short_chat().answer == run.BETS[answer]


def test_sparse_attention_keeps_all_and_reads_little() -> None:
    glm = MODELS[SPARSE]
    assert read(glm, 1000) == kept(glm, 1000), "fewer tokens than it picks"
    assert kept(glm, 100_000) == 100 * kept(glm, 1000) and read(glm, 100_000) < 0.2 * kept(glm, 100_000)


def test_snapshots_trade_bytes_for_tokens_found() -> None:
    fine, coarse = Snapshots(QWEN, 128), Snapshots(QWEN, 1024)
    assert fine.state_bytes_per_token == 8 * coarse.state_bytes_per_token
    assert (fine.found(700), coarse.found(700), coarse.found(1024)) == (640, 0, 1024)
    assert "0; 3,000 are computed again" in str(pictures.snapshots_table(8192, 3000, 100))


def test_pictures_and_numbers() -> None:
    shows(pictures.draw_bytes(pictures.READ, 8000), "a decode step reads of it, at 8,000 tokens")
    assert "–" in str(pictures.reads_table(32, 8000))
    shows(pictures.draw_even(), "195 MB of states replace the keys and values of 45 layers", "even at 2,120 tokens")
    assert all(name in str(pictures.kinds_table()) for name in MODELS)
    assert "2,120 tokens" in str(words.three_numbers())


def test_the_check_rewards_what_is_right() -> None:
    check = checks()
    times_less = kept(all_full(QWEN), 32_000) / kept(QWEN, 32_000)
    rewards(check, times_less, Snapshots(QWEN, 512).bytes_per_token / 1e3, "compute from the last snapshot")
    assert "without the states" in str(check("q1", 4.0)) and "keys and values alone" in str(check("q2", 30.72))
    assert "sum over all tokens" in str(check("q3", "cut the state back"))

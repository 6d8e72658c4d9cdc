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
    shows(pictures.draw_ways(lesson.ways(8.0), 8.0), "TTFT p99", "8 requests/s", "disaggregated, 2 + 2: TTFT p99")
    one, three = (ttft(list(lesson.ways(24.0, n).values())[-1], 99) for n in (1, 3))
    assert one > 3 * three


def fleet(chunks: float, two: float, three: float) -> dict[str, float]:
    return {"whole prompts": 1.0, "chunks of 512": chunks, "disaggregated, 2 + 2": two, "disaggregated, 3 + 1": three}


@pytest.mark.parametrize(
    ("loose", "strict", "says"),
    [
        (fleet(24, 12, 24), fleet(8, 12, 12), "when TPOT is what binds"),
        (fleet(12, 24, 4), fleet(8, 12, 4), "suits the split at either limit"),
        (fleet(24, 12, 24), fleet(8, 8, 4), "chunks are enough"),
    ],
)
def test_goodput_is_told_by_where_the_limits_bind(loose: dict[str, float], strict: dict[str, float], says: str) -> None:
    told = str(words.goodput({"loose": loose, "strict": strict}))
    assert says in told and ("highest load tried" in told) == ("TPOT is what binds" in told)


def test_goodput_is_the_highest_load_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    found = lesson.goodputs()
    loose, strict = found.values()
    assert list(loose) == [*lesson.WAYS, lesson.APART_3] and set(loose.values()) <= {0.0, *lesson.LOADS}
    assert all(strict[way] <= loose[way] for way in loose) and strict["whole prompts"] < strict["disaggregated, 2 + 2"]
    assert "/s" in str(pictures.goodput_table(found))


def test_the_check() -> None:
    rewards(checks(), 1.342, 0.0268, "more prefill replicas")


def test_a_looser_limit_on_itl_takes_fewer_decode_replicas() -> None:
    strict, loose = lesson.need(0.025), lesson.need(0.05)
    assert strict.prefill == loose.prefill and loose.decode < strict.decode
    assert 2 < strict.prefill_part(4) < 3, "between both splits of four"
    assert round(loose.prefill_part(4)) == 3


def test_kv_bounds_the_batch_where_the_limit_on_itl_is_loose() -> None:
    strict, loose, looser = map(lesson.need, (0.025, 0.05, 0.1))
    assert not strict.is_full and loose.is_full and looser == loose
    assert "all that KV has room for" in str(words.token_mix()) and "by ITL" in str(words.token_mix())


def test_a_prompt_that_is_mostly_cached_stays() -> None:
    rows = [row.split("  ") for row in str(pictures.stay_or_go_table()).splitlines()[1:]]
    assert rows[0][-2:] == ["goes", "goes"] and rows[-1][-2:] == ["stays", "stays"]
    for limit in (-2, -1):
        assert [row[limit] for row in rows] == sorted(row[limit] for row in rows), "once it stays, more cache keeps it"


def test_chunks_fill_a_pipeline() -> None:
    assert lesson.pipelined(1, 4) == 1 and lesson.pipelined(10**6, 4) == pytest.approx(4, rel=1e-4)
    assert lesson.pipelined(2, 2) == pytest.approx(4 / 3)

"""Lesson 03: every slider moves its picture the right way, verdicts follow from runs, graders find mistakes."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course.lab import peak_bytes
from course.lab.bend import Bend, bend_on_paper
from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lab.roof import Roof
from course.lab.run import Run
from course.lessons.lesson_03 import check as grading
from course.lessons.lesson_03 import pictures, simulated, words
from course.lessons.lesson_03 import run as lesson
from course.lessons.lesson_03.pictures import draw_square
from course.lessons.lesson_03.run import FUSED, TEXTBOOK, AttentionPoint, Ladder, four_times, ladder_run
from course.measure.scoring import load_items

SMALL, BIG = lesson.shape_of("smollm2-135m"), lesson.shape_of(lesson.BIG)
STRAIGHT = Ladder({64: 0.1, 256: 0.4, 1024: 1.6})
SQUARE = Ladder({64: 0.1, 256: 1.6, 1024: 25.6})


def point(
    tokens: int, speedup: float = 2.0, memory: float = 0.1, power: float = 2.0, difference: float = 1e-6
) -> AttentionPoint:
    seconds = 1e-3 * (tokens / 128) ** power
    peak = 36 * tokens * tokens
    return AttentionPoint(
        tokens, {TEXTBOOK: seconds, FUSED: seconds / speedup}, {TEXTBOOK: peak, FUSED: int(peak * memory)}, difference
    )


def score(right: int) -> lesson.ReadingScore:
    return lesson.ReadingScore(right, 18)


# ---------------------------------------------------------------- counted


def test_the_crossover_is_where_both_parts_are_equal() -> None:
    for shape in (SMALL, BIG):
        assert lesson.attention_share(shape, lesson.crossover(shape)) == pytest.approx(0.5)
        assert lesson.attention_share(shape, lesson.length_with_share(shape, 0.6)) == pytest.approx(0.6)
    assert lesson.crossover(BIG) > 10 * lesson.crossover(SMALL), "a larger model feels its square later"
    assert lesson.flops_ratio(BIG, 1024, 4096) == pytest.approx(4.12, abs=0.01)
    assert lesson.exponent(BIG, 1e9) == pytest.approx(2, abs=0.01)


def test_chunks_cover_the_prompt_and_build_less_at_once() -> None:
    assert lesson.chunk_sizes(100, 48) == [48, 48, 4] and lesson.chunk_sizes(10, 64) == [10]
    whole, chunked = (draw_square(SMALL, 2048, rows, 2048) for rows in (2048, 256))
    ET.fromstring(whole.svg())
    assert "151 MB" in whole.alternative and "1 step " in whole.alternative
    assert "18.9 MB" in chunked.alternative and "8 steps" in chunked.alternative


# ---------------------------------------------------------------- one layer's attention


def test_fused_attention_computes_the_same_and_its_memory_grows_more_slowly() -> None:
    short, long = (lesson.measure_attention(SMALL, tokens, torch.device("cpu"), rounds=1) for tokens in (64, 256))
    assert max(short.difference, long.difference) < 1e-4
    assert long.peak[TEXTBOOK] > 2 * lesson.score_bytes(SMALL, 256, 256), "scores, masked scores and shares"
    assert long.peak[TEXTBOOK] / short.peak[TEXTBOOK] > 2 * long.peak[FUSED] / short.peak[FUSED]
    assert long.memory < short.memory < 1


def test_bytes_are_counted_while_they_live() -> None:
    before = torch.ones(1000)
    with peak_bytes.PeakBytes() as counted:
        for _ in range(3):
            (before + 1).sum()
        kept = [before[10:20], before + 1]
    assert counted.peak == 2 * 4000 or counted.peak == 4000 + 4
    assert counted.now == 4000 and len(kept) == 2


# ---------------------------------------------------------------- on the engine


@pytest.fixture(scope="module")
def swept(tiny_llama_path: Path) -> dict[int, Run]:
    lab = Lab(short=True, model=str(tiny_llama_path), dtype="float32")
    traffic_of = lesson.long_among_chats(lab, answer=60, after=0.02)
    found = {size: lab.run(traffic_of, **lesson.chunk_fields(lab, size)) for size in (16, 64, lesson.long_prompt(lab))}
    lab.close()
    return found


def test_prompts_have_exactly_the_length_that_is_asked_for(tiny_lab: Lab) -> None:
    run = ladder_run(tiny_lab, 1)
    assert [view.num_prompt_tokens for view in run.views] == list(lesson.prompt_lengths(tiny_lab))
    assert all(sum(share.is_prefill for share in step.shares) == 1 for step in run.steps), "each in a step of its own"
    assert len(run.steps) == len(run.views) and not any(view.num_cached_tokens for view in run.views)
    ladder = Ladder.of(run, ladder_run(tiny_lab, 1))
    assert list(ladder.best) == list(lesson.prompt_lengths(tiny_lab)) and ladder.four_apart == (64, 256)
    explorer = pictures.length_explorer(tiny_lab, ladder)
    assert "yours" not in explorer.shown.alternative
    explorer.set(tokens=96).press()
    assert "yours: 96 tokens" in explorer.wait().shown.alternative


def test_a_chunk_bounds_what_a_step_reads(tiny_lab: Lab, swept: dict[int, Run]) -> None:
    longest = lesson.long_prompt(tiny_lab)
    for size, run in swept.items():
        found = lesson.trade(run)
        assert (found.chunk, found.tokens, found.steps) == (size, longest, len(lesson.chunk_sizes(longest, size)))
        name = run.rows[-1].request_id
        assert max(s.num_tokens for step in run.steps for s in step.shares if s.request_id == name) == size
        assert found.ttft > 0 and found.whole == (size == longest)
    explorer = pictures.chunk_explorer(tiny_lab, swept)
    before = explorer.view.value
    explorer.set(chunk=32).press()
    assert "chunks of 32 (6 steps)" in explorer.wait().shown.text and explorer.view.value != before


def test_gaps_are_those_that_overlap() -> None:
    class View:
        deliveries = (1.0, 2.0, 4.0, 5.0)

    assert lesson.gaps_while(View, 2.5, 3.0) == [2.0]
    assert lesson.gaps_while(View, 1.5, 3.0) == [1.0, 2.0]
    assert lesson.gaps_while(View, 6.0, 7.0) == []


# ---------------------------------------------------------------- shorter prompts


def test_cuts_leave_half_of_the_words() -> None:
    text, (question, _) = next((item["text"], item["questions"][0]) for item in load_items("reading")["items"])
    whole, *cuts = (len(cut(text, question).split()) for cut in lesson.CUTS.values())
    assert whole == len(text.split()) and all(0.3 < words / whole <= 0.5 for words in cuts)


def test_the_gate_is_held_against_the_whole_text() -> None:
    assert score(14).passes(score(15)) and not score(13).passes(score(15))


# ---------------------------------------------------------------- 70B, simulated


def test_seventy_billion_trade_and_find_the_bend() -> None:
    trades = {trade.chunk: trade for trade in simulated.trades(8192)}
    whole, middle, small = trades[8192], trades[1024], trades[64]
    assert middle.worst_gap < whole.worst_gap / 4 and middle.ttft < 1.3 * whole.ttft, "the bargain"
    assert small.ttft > 3 * middle.ttft and small.worst_gap > 0.2 * middle.worst_gap, "and its end"
    assert small.ttft > simulated.weight_floor(simulated.deployment(), small.steps)
    explorer = pictures.explore_70b()
    explorer.set(tokens=8192, chunk=64)
    assert "64: 7.50 s" in explorer.view.value or "chunks of 64 (128 steps)" in explorer.shown.alternative


# ---------------------------------------------------------------- findings


def climbing(first: float, exponent: float) -> Ladder:
    """The shortest prompt takes `first` seconds; from the second length on TTFT grows with this power."""
    return Ladder({64: first, 128: first, 256: 1.0, 1024: 4.0**exponent})


@pytest.mark.parametrize(
    ("ladder", "reading_s", "says", "never"),
    [
        (climbing(0.9, 0.7), 0.6, "reading all weights once takes at least 600 ms", "overhead"),
        (climbing(0.9, 0.7), 0.1, "is only 100 ms of it", "almost free"),
        (STRAIGHT, 0.01, "The same is true at the short end", "flatter"),
        (climbing(0.5, 1.0), 0.01, "the curve is flatter", "so it did"),
        (climbing(0.5, 1.16), 0.01, "by FLOPs alone", "doesn't show why"),
        (climbing(0.5, 1.9), 0.01, "this run doesn't show", "launched"),
    ],
)
def test_the_ladder_names_a_cause_only_where_a_figure_shows_it(
    ladder: Ladder, reading_s: float, says: str, never: str
) -> None:
    said = str(words.ladder(ladder, reading_s, SMALL))
    assert says in said and never not in said


@pytest.mark.parametrize(
    ("chunked", "whole", "says"),
    [
        ((0.4, 0.01), (0.1, 0.05), "TTFT grew"),
        ((0.1, 0.01), (0.1, 0.05), "stayed about the same"),
        ((0.08, 0.01), (0.1, 0.05), "even fell"),
        ((0.4, 0.015), (0.1, 0.015), "gained nothing"),
        ((0.4, 0.05), (0.1, 0.05), "Chunks can't do that"),
        ((11.8, 1.77), (0.154, 0.118), "Chunks can't do that"),  # three lessons on one GPU
    ],
)
def test_chunks_are_told_by_what_became_of_both_sides(
    chunked: tuple[float, float], whole: tuple[float, float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {16: lesson.Trade(16, 192, *chunked, 12, 0.01), 192: lesson.Trade(192, 192, *whole, 1, 0.01)}
    monkeypatch.setattr(words, "trade", both.__getitem__)
    found = words.chunks({size: size for size in both}, 0.001)
    assert says in str(found) and found.is_disturbed == (says == "Chunks can't do that")


@pytest.mark.parametrize(
    ("fused", "long", "says"),
    [
        (0.099, 0.8, "moved by −1%"),
        (0.103, 0.8, "moved by +3%"),
        (0.078, 0.8, "isn't the quadratic"),
        (0.13, 0.8, "moved by +30%"),
        (0.099, 1.55, "too small a part"),
    ],
)
def test_short_prompts_are_told_by_what_fused_attention_saved_them(fused: float, long: float, says: str) -> None:
    assert says in str(words.request({TEXTBOOK: STRAIGHT, FUSED: Ladder({64: fused, 256: 0.3, 1024: long})}, SMALL))


def test_the_bend_is_a_division_of_two_numbers() -> None:
    paper = bend_on_paper()
    assert paper.tokens == pytest.approx(989e12 * 0.5 / (3.35e12 * 0.7), rel=0.01)
    assert bend_on_paper(gpus=4).tokens == pytest.approx(paper.tokens)
    assert replace(paper, weight_dtype="float32").tokens == pytest.approx(2 * paper.tokens)
    own = Bend(Roof("this machine", 20e9, 200e9, ""), "float32", 1.0, 1.0)
    assert "measured" in str(words.bend(own)) and "**20 tokens**" in str(words.bend(own))
    assert "Here" not in str(words.bend(bend_on_paper(gpus=4)))


# ---------------------------------------------------------------- claims


STEEP = [point(128), point(1024)]
FLAT = [point(128, power=1), point(1024, power=1)]
SAVING = {TEXTBOOK: STRAIGHT, FUSED: Ladder({64: 0.1, 256: 0.36, 1024: 0.8})}


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        (lambda: words.a3(STRAIGHT, STEEP, SMALL), "only when"),
        (lambda: words.a3(SQUARE, STEEP, SMALL), "holds"),
        (lambda: words.a3(STRAIGHT, FLAT, SMALL), "not shown"),
        (lambda: words.d11(STRAIGHT), "only when"),
        (lambda: words.d17([point(128, memory=0.5), point(1024)], SAVING), "only when"),
        (lambda: words.d17([point(128, difference=0.1), point(1024)], SAVING), "wrong"),
        (lambda: words.d18([point(256)], STRAIGHT, SMALL, "small"), "wrong"),
        (lambda: words.f4(SAVING, words.big_savings()), "only when"),
    ],
)
def test_verdicts_follow_from_what_was_measured(claim: Callable[[], Claim], kind: str) -> None:
    assert claim().kind == kind


def test_what_fused_attention_saves_a_70b_grows_with_the_prompt() -> None:
    savings = words.big_savings()
    assert savings[1024] < savings[4096] < 0.5 < savings[32768]


def test_d7_follows_from_the_gate() -> None:
    def kind(whole: int, *cuts: int) -> str:
        names = {f"cut {i}": score(right) for i, right in enumerate(cuts)}
        return words.d7({"somewhere": 0.8}, {"whole text": score(whole), **names}).kind

    assert (kind(15, 15, 9), kind(15, 15), kind(15, 9), kind(4, 4)) == (
        "only when",
        "holds",
        "wrong",
        "not shown",
    )
    assert kind(9, 11, 5) == "not shown", "four answers of 18 are within luck"
    saved = words.halved_4k()
    assert 0.1 < saved["four H100s"] < saved["two A100s"] < 1


# ---------------------------------------------------------------- predictions and checks


def test_four_times_is_the_measured_ratio() -> None:
    assert four_times(STRAIGHT).answer == pytest.approx(4) and four_times(SQUARE).answer == pytest.approx(16)


def test_own_ttft_says_what_chunks_did(swept: dict[int, Run]) -> None:
    outcome = lesson.own_ttft(swept, 16)
    assert outcome.answer in (lesson.LONGER, lesson.SAME, lesson.SHORTER) and "12 chunks" in outcome.evidence
    same = {16: swept[16], 17: swept[16]}
    assert lesson.own_ttft(same, 16).answer == lesson.SAME


def test_the_check_rewards_right_answers_and_explains_wrong_ones(swept: dict[int, Run]) -> None:
    check = grading.checks(SMALL, [lesson.trade(each) for each in swept.values()])
    assert check("q1", 6144).score == 1
    assert check("q2", 151).score == 1
    small, whole = lesson.trade(swept[16]), lesson.trade(swept[max(swept)])
    key = "the others" if small.worst_gap < whole.worst_gap else "the long prompt"
    assert check("q3", key).score == 1 and check("q3", "everybody").score == 0
    assert check("q4", 12).score == 1 and "12 steps" in str(check("q4", 1))
    assert check("q5", 3.8).score == 1

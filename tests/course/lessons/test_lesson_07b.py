"""Lesson 07b: windows, needles, losses and tiers. By hand, on a tiny model, and on the simulator."""

from dataclasses import replace

import pytest
from asserting import rewards, shows
from made_trace import found, frame, large, loss, trace_of

from course.lab.lab import Lab
from course.lab.pool_trace import DECODE, GONE
from course.lessons.lesson_07.run import engine
from course.lessons.lesson_07b import pictures, run, words
from course.lessons.lesson_07b.check import checks
from course.lessons.lesson_07b.run import FIRST_TIME
from course.measure.quality import QualityLimits


def test_a_window_gives_blocks_back_to_the_pool(tiny_lab: Lab) -> None:
    whole, cut, sinks = run.growths(tiny_lab).values()
    given_back = [pictures.given_back(each) for each in (whole, sinks, cut)]
    assert given_back[0] == 0 < given_back[1] < given_back[2]
    last = next(f for f in reversed(cut.frames) if 0 in f.tables)
    assert len(last.holders()) == len(last.tables[0]) - last.tables[0].count(GONE)
    assert max(blocks for _, blocks in cut.blocks_of(0)) < 0.6 * max(blocks for _, blocks in whole.blocks_of(0))
    shows(pictures.draw_window({"whole": whole, "window": cut}), "given back", "blocks held")


def test_haystacks_have_their_needles_where_they_should_be(tiny_lab: Lab) -> None:
    stacks = run.haystacks(tiny_lab, (FIRST_TIME, 32, 64))
    assert [[each.distance for each in of] for of in stacks] == [[FIRST_TIME, 32, 64]] * len(run.NEEDLES)
    once, near, far = stacks[0]
    said = tiny_lab.model.tokenizer.encode("\n\n" + run.NEEDLES[0])
    assert once.token_ids[-len(said) :] == said == near.token_ids[-len(said) :]
    assert near.token_ids[run.LEAD : run.LEAD + len(said)] == said
    assert len(far.token_ids) - len(near.token_ids) == 32
    assert len(near.token_ids) - near.num_given == len(said) - run.CUE_TOKENS


def test_needles_are_scored_token_by_token(tiny_lab: Lab) -> None:
    of = run.look_for(engine(tiny_lab), run.haystacks(tiny_lab, (FIRST_TIME, 32)))
    window, distances = run.probe(tiny_lab)
    assert list(distances) == sorted(distances) and distances[-1] > window
    shortest, longest = run.spans(tiny_lab)
    assert run.reach(tiny_lab, window) == window - longest <= window - shortest
    tokens = sum(len(tiny_lab.model.tokenizer.encode("\n\n" + each)) - run.CUE_TOKENS for each in run.NEEDLES)
    assert of.keys() == {FIRST_TIME, 32} and all(each.tokens == tokens for each in of.values())
    assert all(each.share < 0.2 for each in of.values()), "random weights know nothing"
    shows(pictures.draw_needle({"a": of, "b": of}, 50), "out of the window", "never seen before")


def test_recall_lies_between_never_heard_and_just_heard() -> None:
    whole = found(0.9, 0.9)
    assert run.recalled(whole, 192) == pytest.approx(1) and run.recalled(found(0.9, 0.2), 192) == pytest.approx(0)
    for share, answer in zip((0.9, 0.5, 0.25), run.FORESEEN):
        assert run.needle_share({"whole": whole, "window": found(0.9, share)}).answer == answer


def test_the_gate_measures_all_candidates_on_one_text(tiny_lab: Lab) -> None:
    of = run.measure_losses(tiny_lab)
    assert list(of) == list(run.candidates(tiny_lab)) and len({each.score.positions for each in of.values()}) == 1
    rounded, cut, sinks = of.values()
    assert 0 < rounded.kl < cut.kl and rounded.agreement > 0.8
    assert rounded.kv_share < 0.3 and cut.kv_share < sinks.kv_share < 0.1


def test_limits_are_kept_or_named() -> None:
    assert loss().broken(QualityLimits()) == []
    assert loss(rise=0.05, kl=0.2, agreed=50).broken(QualityLimits()) == ["perplexity", "KL", "likeliest token"]
    assert loss(rise=float("nan")).broken(QualityLimits()) == ["perplexity"]
    assert loss(rise=0.05).rise == pytest.approx(0.05)


def test_findings_say_no_more_than_the_model_showed() -> None:
    """With random weights nothing is recalled, so nothing is lost; and the likeliest token is a toss-up."""
    never = {"whole": found(0.2, 0.2), "window": found(0.2, 0.2)}
    assert isinstance(run.needle_share(never), str) and "can't show what a window loses" in words.forgotten(never).here
    lost = {"whole": found(0.9, 0.9), "window": found(0.9, 0.2)}
    assert "**It's gone**" in words.forgotten(lost).here
    for rounded, says in (
        (loss(agreed=50), "a toss-up"),
        (loss(kl=0.2), "breaks KL"),
        (loss(), "All three limits are kept"),
    ):
        for with_sinks, is_told in ((loss(rise=0.1), True), (loss(rise=0.9), False)):
            told = words.rounding({"KV in int8": rounded, "window": loss(rise=1.0), "sinks": with_sinks}).here
            assert says in told and ("first four tokens" in told) == is_told


def test_fetching_wins_above_the_break_even() -> None:
    n = 8192
    bandwidth = n * run.token_bytes() / run.compute_s(n) / 1e9
    assert 3 < bandwidth < 6, "about 5 GB/s for a 70B on four H100s"
    assert run.fetch_s(n, 1.1 * bandwidth, 0) < run.compute_s(n) < run.fetch_s(n, 0.9 * bandwidth, 0)
    shows(pictures.draw_fetch(50.0, 0.1), "fetching is faster at every length")
    shows(pictures.draw_fetch(50.0, 50.0), "fetching wins from")
    shows(pictures.draw_fetch(0.5, 0.1), "computing is faster at every length")


def test_a_paused_agent_costs_room_while_it_is_kept_and_time_when_it_is_dropped() -> None:
    short, long = (run.Pause(0.5, tool_s, 20_000, 50.0) for tool_s in (10.0, 100.0))
    assert short.paused == 5 and long.pool_share == pytest.approx(10 * short.pool_share)
    assert short.gpu_share() == long.gpu_share(), "how long a tool takes is no matter once its KV is gone"
    assert 0 < short.resume_s()["fetch it"] < short.resume_s()["drop it"]
    assert run.Pause(0.5, 10.0, 20_000, 1.0).resume_s()["fetch it"] > short.resume_s()["drop it"], "a slow link"
    table = str(pictures.pause_table(1.0, 600.0, 40_000, 50.0))
    assert "it doesn't fit" in table and "600 agents waiting" in table


def test_the_break_even_of_the_whiteboard_is_the_simulators() -> None:
    """The formula leaves attention out, and takes half the peak."""
    tokens = 4096
    simulated = tokens * run.token_bytes() / run.compute_s(tokens) / 1e9
    assert words.break_even_gb("llama-3-70b", 4) == pytest.approx(simulated, rel=0.25)


def test_d14_by_length_and_by_what_is_lost() -> None:
    back = trace_of([frame({0: (0, GONE, GONE, 3)}, {0: 64}, (DECODE,))])
    whole = found(0.9, 0.9)
    claim = words.d14(large(), back, 32, {"whole": whole, "window": found(0.9, 0.2)})
    assert claim.kind == "only when" and "6,827 tokens" in claim.verdict
    assert "1,500 tokens: 0%" in claim.measured and "2 blocks given back, 2 held" in claim.measured


def test_the_check_rewards_what_is_right() -> None:
    freed = 1 - replace(large(), window=2048).chat_bytes_at(6000) / large().chat_bytes_at(6000)
    rewards(checks(large(), {"KV in int8": loss()}), freed, "yes", 4096 * 327_680 / 50e9)
    assert checks(large(), {"KV in int8": loss(rise=0.5)})("q2", "no").score == 1


def test_the_bet_on_tiers_goes_by_what_later_turns_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "later_ttft", float)
    answers = [
        words.which_pays({"alone": 1.0, "host": host, "store": store}).answer
        for host, store in ((0.3, 0.95), (0.3, 0.5), (0.9, 0.5), (0.9, 1.2))
    ]
    assert answers == [words.PAYS[1], words.PAYS[0], words.PAYS[2], words.PAYS[3]]

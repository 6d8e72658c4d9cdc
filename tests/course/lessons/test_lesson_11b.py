"""Lesson 11b: spikes, alarms, sleep, and a deploy that is watched and undone."""

import math
from dataclasses import replace
from statistics import median

import pytest
from asserting import rewards, shows

from course.lessons.lesson_11b import explorer, pictures, run, words
from course.lessons.lesson_11b.check import checks
from course.lessons.lesson_11b.run import MEASURES, Alarm, Spike, SpikeRequest, SpikeStory
from course.simulator.cluster.record import ClientRecord
from minillm.core.timeline import Timeline

pytestmark = pytest.mark.usefixtures("few_requests")


SMALL_SPIKE = Spike(times=4.0, length=30.0, cold=30.0)


def outcomes_of(*ttft: float | None) -> tuple[SpikeRequest, ...]:
    return tuple(SpikeRequest(60.0 + 10 * i, each) for i, each in enumerate(ttft))


def a_story(*ttft: float | None, measure: str = "autoscaler", gpu_hours: float = 1.0) -> SpikeStory:
    return SpikeStory(Spike(), measure, outcomes_of(*ttft), ((0.0, 1), (10.0, 1)), gpu_hours)


def test_back_counts_from_the_spike_to_the_last_late_window() -> None:
    assert a_story(1.0, 9.0, 5.0, 1.0).back == 30
    assert a_story(1.0, 1.0).back == 0
    assert math.isinf(a_story(*[9.0] * 36).back)
    assert a_story(1.0, None, 9.0, 1.0).share("refused") == 0.25 and a_story(1.0, None).share("within SLO") == 0.5


def test_measures_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ENDS", 150.0)
    found = run.stories(SMALL_SPIKE)
    assert found["refuse beyond a limit"].share("refused") > 0 == found["refuse beyond a limit"].share("small")
    small = found[run.DEGRADE]
    assert small.share("small") > 0 == small.share("refused") and small.gpu_hours > found["do nothing"].gpu_hours
    assert max(n for _, n in found["autoscaler"].up) > 1 == max(n for _, n in found["do nothing"].up)
    assert found["a spare replica, always on"].share("within SLO") > found["do nothing"].share("within SLO")
    assert str(pictures.stories_table(found, 2.0)).count("%") == 3 * len(MEASURES)
    assert words.saved_by_the_autoscaler(found).answer in words.SAVED
    with pytest.raises(ValueError, match="choose one of"):
        run.story(SMALL_SPIKE, "pray")


def test_the_bet_counts_the_requests_that_the_autoscaler_saves() -> None:
    def spike(late_with_it: int) -> dict[str, SpikeStory]:
        made = {name: a_story(*[9.0] * 10, measure=name) for name in MEASURES}
        made["autoscaler"] = replace(a_story(*[9.0] * late_with_it, *[1.0] * 10), up=((60.0, 1), (200.0, 4)))
        return made

    answers = [words.saved_by_the_autoscaler(spike(late)).answer for late in (10, 12, 8, 5, 1)]
    assert answers == [words.SAVED[0], words.SAVED[0], *words.SAVED[1:]]
    assert "saved no request" in words.tell_spike(spike(10), 2.0).here
    assert "up 140 s after" in (told := words.tell_spike(spike(5), 2.0).here) and "saved 50%" in told


def alarm(fired: float, first: float | None) -> Alarm:
    return Alarm([fired], [9.0], [] if first is None else [first])


def test_the_alarm_and_the_first_to_leave() -> None:
    assert alarm(10, 15).lead == 5 and alarm(20, 15).lead == -5 and alarm(10, None).lead is None
    assert Alarm([1.0], [0.1], [5.0]).lead == -math.inf


def test_the_alarm_hears_those_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ALARM_ENDS", 120.0)
    queued, reading = run.alarm(2.0, 10.0), run.alarm(0.7, 20.0, "the last word", run.LONG_ANSWER)
    assert len(queued.gave_up) > 0 and max(queued.wait) == pytest.approx(10.0)
    everybody = len(run.alarm(0.7, 1000.0, "the last word", run.LONG_ANSWER).wait)
    assert len(reading.gave_up) > 0 and len(reading.wait) == everybody


def test_who_left_waited_until_then() -> None:
    def record(scheduled: float | None, ended: float) -> ClientRecord:
        line = Timeline(1.0, scheduled=scheduled)
        return ClientRecord(None, sent=1.0, ended=ended, timeline=line)

    assert run.waited(record(4.0, 9.0)) == (4.0, 3.0)
    assert run.waited(record(None, 9.0)) == (9.0, 8.0)
    assert run.waited(record(12.0, 9.0)) == (9.0, 8.0), "it was worked on for nobody"
    assert run.waited(ClientRecord(None, sent=2.0, ended=9.0)) == (9.0, 7.0)


def test_the_warning_on_paper_is_that_of_the_median_run_and_mild_overloads_scatter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "OVERLOAD_STARTS", 30.0)
    monkeypatch.setattr(run, "ALARM_ENDS", 105.0)
    scatter = {}
    for load in (1.3, 2.0):
        paper = (10 - run.WORRY_S) * load / (load - 1)
        leads = [run.alarm(load, 10.0, seed=seed).lead for seed in range(3)]
        assert 0.75 * paper < median(leads) < 1.25 * paper
        scatter[load] = max(leads) / min(leads)
    assert scatter[1.3] > 1.2 * scatter[2.0]


def test_who_waits_for_a_cold_start() -> None:
    rare, often = run.sleep(1.0, 60.0, 60.0), run.sleep(300.0, 60.0, 300.0)
    assert rare.cold > 0.8 > 0.1 > often.cold and rare.awake < 0.3 < often.awake
    assert 60 < rare.ttft < 80 and rare.share_of_ttft > 0.9


def test_a_few_cold_starts_are_most_of_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "0")
    seldom = run.sleep(run.RARE_RATES[-2], 180.0, 300.0)
    assert 0 < seldom.cold < words.RARELY and seldom.share_of_ttft > words.MOSTLY


BAD, NOTHING = "no CUDA graphs", "nothing (an A/A test)"


def test_a_rule_fires_on_what_it_could_know_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second request is late, from the 10th on; each is known a second after it was sent."""
    told = [(sent + 1.0, sent >= 10 and sent % 2 == 0, float(sent)) for sent in range(40)]
    monkeypatch.setattr(run, "watched", lambda change, rate, seed: told)
    found = run.rehearse(BAD, 1.0, window=4, limit=0.25, undo_s=5.0)
    assert found.detected == 13.0  # requests 9 to 12: two of four are late, the second known at 13 s
    assert found.undone == 18.0 and found.harmed == 4  # 10, 12, 14, 16; the one sent at 18 s meets the old settings
    assert math.isinf(run.rehearse(BAD, 1.0, window=4, limit=0.5, undo_s=5.0).detected)


def test_a_mistake_is_rolled_back_and_nothing_is_not() -> None:
    found, control = (run.rehearse(change, 3.0, 50, 0.2, 5.0) for change in (BAD, NOTHING))
    assert 50 / 3 / 1.5 < found.detected < 60 < control.detected == math.inf
    assert found.harmed > 0 == control.harmed
    assert words.until_undone().answer == found.undone
    assert "undone after" in pictures.draw_canary(BAD, 3.0, 200, 0.2, "a flag, read at run time").description


def test_a_cold_start_is_the_sum_of_its_pieces() -> None:
    setting = {
        "machine_s": 60.0,
        "image_gb": 15.0,
        "image_cached": False,
        "source": "network disk, 3 GB/s",
        "compile_s": 45.0,
        "compile_cached": False,
        "graphs_s": 15.0,
        "asleep": False,
    }
    cold = sum(explorer.pieces(**setting).values())
    assert cold == pytest.approx(60 + 15 + explorer.WEIGHTS_GB / 3 + 45 + 15 + 2)
    assert sum(explorer.pieces(**{**setting, "asleep": True}).values()) == pytest.approx(explorer.WEIGHTS_GB / 50 + 1)
    assert (
        sum(explorer.pieces(**{**setting, "image_cached": True, "compile_cached": True}).values()) == cold - 15 - 40.5
    )
    shows(explorer.draw_cold_start(30.0, **setting), "patience")
    assert "43.5%  1.75 s  4 s" in str(explorer.idle_table(10, 300.0, "sleep mode, 4 s"))  # exp(-300 / 360)
    assert "43.5%  97.8 s  180 s" in str(explorer.idle_table(10, 300.0, "cold start, 180 s"))


def test_the_check_rewards_what_is_right() -> None:
    day = {
        "do nothing": a_story(1.0, 9.0),
        "refuse beyond a limit": a_story(1.0, None),
        "autoscaler": a_story(1.0, 1.0),
        "a spare replica, always on": a_story(1.0, 1.0),
    }
    rewards(checks(day), "Autoscaler")

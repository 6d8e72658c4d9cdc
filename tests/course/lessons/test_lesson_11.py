"""Lesson 11: bounds, the knee, money, spikes, sleep, routes. Arithmetic by hand; the rest on the simulator."""

import math
from dataclasses import replace

import numpy as np
import pytest
from asserting import refuses_garbage

from course.lab.lab import Lab
from course.lessons.lesson_11 import (
    claims,
    cold,
    findings,
    fleet,
    money,
    spike,
    traffic,
    warning,
    worksheet,
)  # fmt: skip
from course.lessons.lesson_11.bounds import Ask
from course.lessons.lesson_11.checks import checks, money_checks, spike_checks
from course.lessons.lesson_11.cold import Sleep
from course.lessons.lesson_11.hardware import GpuOption
from course.lessons.lesson_11.knee import Crowd, Point, Sweep
from course.lessons.lesson_11.routing import Played, Route
from course.lessons.lesson_11.spike import MEASURES, RequestOutcome, Spike, Story
from course.lessons.lesson_11.warning import Alarm
from course.simulator.cluster.record import ClientRecord
from course.simulator.errors import SimulationError, WorkloadError
from minillm.core.timeline import Timeline
from minillm.observe.summary import SLO


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests and few slots: the shapes stay, and a run takes a tenth of a second."""
    monkeypatch.setenv("MINILLM_SHORT", "1")
    monkeypatch.setattr(fleet, "SLOTS", 40)
    monkeypatch.setattr(fleet, "LEAST", 80)
    monkeypatch.setattr(cold, "COUNT", 80)


def served(waits: list[float], ttft: list[float] | None = None) -> fleet.Served:
    """A request a second, each with these waits and ten tokens."""
    sent = np.arange(len(waits), dtype=float)
    columns = {name: np.full(len(waits), 0.05) for name in ("tpot", "stall")}
    first = np.array(waits if ttft is None else ttft) + 0.1
    return fleet.Served(
        sent=sent, ttft=first, e2e=first + 0.5, slot_at=sent + waits, queue=np.array(waits),
        tokens=np.full(len(waits), 10.0), stamps=np.repeat(sent, 10) + 0.5, preemptions=0, **columns,
    )  # fmt: skip


# ---------------------------------------------------------------- runs in numbers


def test_a_run_is_read_once_it_has_settled() -> None:
    run = served([5.0, 5.0, 0.0, 0.0, 0.0, 3.0])
    assert run.until == 5 and list(run.settled) == [False, True, True, True, True, True]
    assert run.attainment(SLO(ttft=2.0)) == pytest.approx(3 / 5)
    assert run.goodput(SLO(ttft=2.0)) == pytest.approx(3 / 4)
    assert run.attainment(SLO(ttft=2.0, tpot=0.01)) == 0
    assert run.p("queue", 100) == 5 and run.throughput == pytest.approx(10)


def test_whoever_got_no_answer_is_not_in_time() -> None:
    run = served([0.0] * 6)
    run.e2e[3] = run.ttft[3] = math.nan
    assert run.attainment(SLO(ttft=2.0)) == pytest.approx(4 / 5)


def test_a_replica_serves_no_more_than_its_capacity() -> None:
    most = fleet.capacity(fleet.asking(1500, 150))
    assert 5 < most < 8
    assert fleet.capacity(fleet.asking(500, 150)) > 1.5 * most
    assert fleet.served(fleet.asking(1500, 150), 1.0) is fleet.served(fleet.asking(1500, 150), 1.0)


# ---------------------------------------------------------------- bounds


def test_bounds_by_hand() -> None:
    ask = Ask(prompt=1000, answer=100, slots=10)
    assert ask.flops_of_prompt == 2 * ask.params * 1000 and 68e9 < ask.params < 69e9
    found = list(ask.bounds().values())
    assert found[0] == pytest.approx(4 * 989.4e12 / (2 * ask.params * 1100))
    assert found[1] == pytest.approx(ask.share_reached * found[0])
    assert found[2] == pytest.approx(10 / ask.shortest_stay)
    assert found[4] < min(found[:3])


def test_more_seats_move_only_their_bound_until_the_work_is_too_much() -> None:
    few, many = (list(Ask(slots=n).bounds().values()) for n in (8, 256))
    assert many[2] == pytest.approx(32 * few[2]) and many[:2] == few[:2] and many[4] > few[4]


# ---------------------------------------------------------------- the knee


def point(slots: int, ttft: float, in_time: float, tpot: float = 0.05) -> Point:
    return Point(slots, 100.0 * slots, ttft, tpot, 2 * in_time, in_time)


FALLS = Sweep((point(8, 20, 0.1), point(32, 2, 0.8), point(64, 1, 1.0), point(128, 1, 1.0)), fleet.LIMITS, 2.0, 300)


def test_the_best_setting_is_the_smallest_that_is_good_enough() -> None:
    assert FALLS.best.slots == 64 and FALLS.at(40).slots == 32


# ---------------------------------------------------------------- money


def test_a_bill_is_rent_over_tokens() -> None:
    trouble = money.TROUBLES["too few slots"]
    one, two = (money.bill(trouble, n, False, 2.0) for n in (1, 2))
    assert one.per_hour == 8 and two.per_hour == 16
    assert one.per_million == pytest.approx(1e6 * 8 / 3600 / trouble.run(1, False).throughput)
    assert money.bill(trouble, 1, False, 4.0).per_million == pytest.approx(2 * one.per_million)


def test_three_troubles_want_three_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LEAST", 320)  # a line needs time to grow
    slots, work, slow = money.TROUBLES.values()
    assert slots.run(1, True).attainment(slots.slo) > slots.run(1, False).attainment(slots.slo)
    assert work.enough(True) != 1
    assert slow.enough(False) is None and slow.enough(True) == 1


# ---------------------------------------------------------------- spikes and alarms

SMALL_SPIKE = Spike(times=3.0, length=30.0, cold=30.0)


def outcomes_of(*ttft: float | None) -> tuple[RequestOutcome, ...]:
    return tuple(RequestOutcome(60.0 + 10 * i, each) for i, each in enumerate(ttft))


def a_story(*ttft: float | None, measure: str = "autoscaler", gpu_hours: float = 1.0) -> Story:
    return Story(Spike(), measure, outcomes_of(*ttft), ((0.0, 1), (10.0, 1)), gpu_hours)


def test_back_counts_from_the_spike_to_the_last_late_window() -> None:
    assert a_story(1.0, 9.0, 5.0, 1.0).back == 30
    assert a_story(1.0, 1.0).back == 0
    assert math.isinf(a_story(*[9.0] * 36).back)
    assert a_story(1.0, None, 9.0, 1.0).share("refused") == 0.25 and a_story(1.0, None).share("within SLO") == 0.5


def test_measures_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spike, "ENDS", 150.0)
    found = spike.stories(SMALL_SPIKE)
    assert found["refuse beyond a limit"].share("refused") > 0 == found["refuse beyond a limit"].share("small")
    small = found[spike.DEGRADE]
    assert small.share("small") > 0 == small.share("refused") and small.gpu_hours > found["do nothing"].gpu_hours
    assert max(n for _, n in found["autoscaler"].up) > 1 == max(n for _, n in found["do nothing"].up)
    assert found["a spare replica, always on"].share("within SLO") > found["do nothing"].share("within SLO")
    assert str(traffic.stories_table(found, 2.0)).count("%") == 3 * len(MEASURES)
    assert traffic.first_back(found).answer in traffic.BACK
    with pytest.raises(ValueError, match="choose one of"):
        spike.story(SMALL_SPIKE, "pray")


def test_the_first_back_wins_the_bet() -> None:
    def bet(scaler: float, away: float) -> str:
        made = {name: a_story(1.0, measure=name) for name in MEASURES}
        made["autoscaler"] = a_story(*[9.0] * int(scaler / 10), 1.0)
        for name in ("refuse beyond a limit", spike.DEGRADE):
            made[name] = a_story(*[9.0] * int(away / 10), 1.0, measure=name)
        return traffic.first_back(made).answer

    assert [bet(100, 20), bet(20, 100), bet(50, 50)] == [traffic.BACK[1], traffic.BACK[0], traffic.BACK[2]]


def alarm(fired: float, first: float | None) -> Alarm:
    return Alarm(np.array([fired]), np.array([9.0]), np.array([] if first is None else [first]))


def test_the_alarm_and_the_first_to_leave() -> None:
    assert alarm(10, 15).lead == 5 and alarm(20, 15).lead == -5 and alarm(10, None).lead is None
    assert Alarm(np.array([1.0]), np.array([0.1]), np.array([5.0])).lead == -math.inf


def test_the_alarm_hears_those_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warning, "ENDS", 120.0)
    queued, reading = warning.alarm(2.0, 10.0), warning.alarm(0.7, 20.0, "the last word", warning.LONG_ANSWER)
    assert len(queued.gave_up) > 0 and queued.wait.max() == pytest.approx(10.0)
    everybody = len(warning.alarm(0.7, 1000.0, "the last word", warning.LONG_ANSWER).wait)
    assert len(reading.gave_up) > 0 and len(reading.wait) == everybody


def test_who_left_waited_until_then() -> None:
    def record(scheduled: float | None, ended: float) -> ClientRecord:
        line = Timeline(1.0, scheduled=scheduled)
        return ClientRecord(None, sent=1.0, ended=ended, timeline=line)

    assert warning.waited(record(4.0, 9.0)) == (4.0, 3.0)
    assert warning.waited(record(None, 9.0)) == (9.0, 8.0)
    assert warning.waited(record(12.0, 9.0)) == (9.0, 8.0), "it was worked on for nobody"
    assert warning.waited(ClientRecord(None, sent=2.0, ended=9.0)) == (9.0, 7.0)


def test_on_paper_the_warning_is_longer_than_in_bursts() -> None:
    for load in (1.1, 1.3, 2.0):
        paper = (10 - warning.WORRY_S) * load / (load - 1)
        assert 0.7 * paper < warning.alarm(load, 10.0).lead < paper


# ---------------------------------------------------------------- sleep, routes, regimes, worksheet


def test_who_waits_for_a_cold_start() -> None:
    rare, often = cold.sleep(1.0, 60.0, 60.0), cold.sleep(300.0, 60.0, 300.0)
    assert rare.cold > 0.8 > 0.1 > often.cold and rare.awake < 0.3 < often.awake
    assert 60 < rare.ttft < 80 and rare.share_of_ttft > 0.9


def test_a_wrong_route_by_hand() -> None:
    route = Route(small=1.0, large=10.0, easy=0.7)
    assert route.routed(0.0) == pytest.approx(0.7 * 1 + 0.3 * 10)
    wrong = 0.7 * 0.9 * 1 + 0.7 * 0.1 * 10 + 0.3 * 0.9 * 10 + 0.3 * 0.1 * (1 + 10)
    assert route.routed(0.1) == pytest.approx(wrong)
    edge = route.break_even
    assert route.routed(edge) == pytest.approx(route.large)
    assert Route(1.0, 10.0, 0.7, caught=0.0, harm=1000.0).break_even < 0.05
    assert Route(10.0, 10.0).break_even == 0.0
    assert Route(1.0, 10.0, easy=0.3, caught=0.0).break_even is None


def test_the_worksheet_counts_replicas() -> None:
    filled = worksheet.plan(qps=20.0, prompt=500, answer=20, requests=60)
    found = filled.found
    assert found.replicas == math.ceil(20.0 / (found.knee * 0.8))
    assert found.cost_per_hour == pytest.approx(found.replicas * 4 * money.gpu_price())
    table = str(worksheet.explained(filled))
    assert "what binds" in table and money.price_source() in table
    own = str(worksheet.explained(replace(filled, price=3.0)))
    assert "$3.00, as entered" in own and money.price_source() not in own
    with pytest.raises(SimulationError, match="more replicas"):
        worksheet.plan(qps=20.0, prompt=500, answer=20, tpot=0.001, requests=60)
    with pytest.raises(WorkloadError):
        worksheet.plan(qps=-1.0, prompt=500, answer=20, requests=60)


# ---------------------------------------------------------------- the real engine


def test_the_bet_on_a_hundred() -> None:
    flood = traffic.a_hundred()
    assert findings.served(flood).answer == pytest.approx(100 * traffic.served_share(flood, 100.0))
    assert findings.served(flood).answer == pytest.approx(list(Ask().bounds().values())[-1], rel=0.05)


# ---------------------------------------------------------------- claims


def test_a8_and_a16_by_what_was_found() -> None:
    line, none = served([0.0, 9.0, 9.0, 9.0]), served([0.0] * 4)
    assert claims.a8(line, none, 5).kind == "wrong" and claims.a8(line, line, 5).kind == "holds"
    assert claims.a8(none, none, 5).kind == "not shown"
    flood = served([0.0] * 11)  # one a second comes, and is served
    assert traffic.served_share(flood, 1.0) == pytest.approx(1)
    assert claims.a16(Ask(), flood, 4.0).kind == "wrong" and "about 25" in claims.a16(Ask(), flood, 4.0).verdict
    assert claims.a16(Ask(qps=5), flood, 4.0).kind == "wrong" and claims.a16(Ask(qps=1), flood, 4.0).kind == "holds"


def test_a10_tells_a_limit_from_a_load() -> None:
    crowds = [Crowd(4, 100, 0.5), Crowd(64, 500, 4.0)]
    best_at_32 = replace(FALLS, points=(point(8, 20, 0.1), point(32, 1, 1.0), point(64, 1, 1.0)))
    assert claims.a10({"x": best_at_32}, crowds).kind == "holds only when"
    other = claims.a10({"x": FALLS}, crowds)
    assert other.kind == "wrong"


def test_a20_on_made_up_troubles() -> None:
    class Made(money.Trouble):
        def enough(self, changed: bool) -> int | None:
            return self.after["n"] if changed else self.before["n"]

    def trouble(before: int | None, after: int | None) -> Made:
        return Made("t", "", "field", 1, 1, 1.0, {"n": before}, {"n": after})

    free, paid, none = trouble(2, 1), trouble(2, 2), trouble(None, None)
    assert claims.a20([free, paid], 1.0).kind == "holds only when" and claims.a20([free], 1.0).kind == "holds"
    assert claims.a20([paid, none], 1.0).kind == "wrong" and "$4.00 more" in claims.a20([paid], 1.0).measured


def test_a21_compares_a_spike_with_a_climb() -> None:
    def day(scaler: list[float], nothing: list[float], door: list[float | None]) -> dict[str, Story]:
        return {
            "do nothing": a_story(*nothing), "autoscaler": a_story(*scaler), "refuse beyond a limit": a_story(*door)
        }  # fmt: skip

    late, fine, half = [9.0] * 4, [1.0] * 4, [1.0, 1.0, None, None]
    assert claims.a21(day(late, late, half), day(fine, late, half)).kind == "holds"
    assert claims.a21(day(fine, late, half), day(fine, late, half)).kind == "wrong"
    assert claims.a21(day(fine, late, half), day(late, late, half)).kind == "not shown"
    same = claims.a21(day(late, late, fine), day(half, late, fine))
    assert same.kind == "holds only when"


def test_d20_looks_for_a_cheaper_field() -> None:
    old = GpuOption("old", 0.2, 0.03, 7.0, 3.0, 100.0)
    new = replace(old, name="new", e2e=5.0, per_day=200.0)
    field = replace(old, name="int4", per_day=30.0)
    cheap = claims.d20({h.name: h for h in (old, new, field)})
    assert cheap.kind == "holds only when" and "int4, $30.00 a day, 7 s end to end" in cheap.verdict
    dear = claims.d20({h.name: h for h in (old, replace(new, e2e=2.0), replace(field, per_day=300.0))})
    assert dear.kind == "holds" and "not 1.4 times" in dear.verdict


def test_e2_e3_e8_by_what_was_found() -> None:
    silent = Alarm(np.array([1.0]), np.array([0.1]), np.array([5.0]))
    assert claims.e2({"a": alarm(10, 30)}, silent).kind == "holds only when"
    assert claims.e2({"a": alarm(10, 30)}, alarm(10, None)).kind == "holds"
    assert claims.e2({"a": alarm(30, 10)}, silent).kind == "wrong"
    assert claims.e2({"a": alarm(10, None)}, silent).kind == "not shown"
    asleep, awake = Sleep(0.9, 100.0, 0.4, 0.1, 300.0), Sleep(0.0, 0.41, 0.4, 1.0, 300.0)
    seldom = replace(asleep, cold=0.03)
    assert claims.e3({1: asleep, 100: awake}).kind == "holds only when"
    assert "3% of the requests" in claims.e3({1: asleep, 10: seldom, 100: awake}).verdict
    assert "Rarely" not in claims.e3({1: asleep, 100: awake}).verdict
    assert claims.e3({1: asleep, 100: asleep}).kind == "holds" and claims.e3({1: awake}).kind == "wrong"
    played = Played(np.ones(4), np.ones(4), np.array([True, False, False, False]))
    caught, half = Route(1.0, 10.0), Route(1.0, 10.0, caught=0.5, harm=300.0)
    priced = claims.e8(caught, half, played, played, played)
    assert priced.kind == "holds only when" and "costs 30 large requests" in priced.measured
    assert claims.e8(Route(10.0, 10.0), half, played, played, played).kind == "wrong"
    assert claims.e8(half, half, played, played, replace(played, twice=np.zeros(4, bool))).kind == "holds"


def test_claims_measure_themselves(tiny_lab: Lab) -> None:
    for name, table in (("A8", claims.MEASURE), ("E8", claims.MONEY)):
        assert table[name](tiny_lab).id == name


# ---------------------------------------------------------------- the check


@pytest.fixture(scope="module")
def route() -> Route:
    return Route(small=0.0001, large=0.0007)


def test_the_checks_reward_what_is_right(route: Route) -> None:
    day = {
        "do nothing": a_story(1.0, 9.0), "refuse beyond a limit": a_story(1.0, None),
        "autoscaler": a_story(1.0, 1.0), "a spare replica, always on": a_story(1.0, 1.0),
    }  # fmt: skip
    troubles = list(money.TROUBLES.values())
    mends = ["setting" if t.enough(True) == 1 else "replicas" if t.enough(False) else "neither" for t in troubles]
    million = money.bill(troubles[0], 2, False, 2.0).per_million
    for check, answers in (
        (checks(FALLS, Ask()), (Ask().qps * Ask().flops_of_prompt / Ask().peak, 64)),
        (spike_checks(day), ("Autoscaler",)),
        (money_checks(troubles, route, 2.0), (mends, million, 1000 * route.routed(0.1))),
    ):
        for number, answer in enumerate(answers, start=1):
            result = check(f"q{number}", answer)
            assert result.score == result.max_score, str(result)
        refuses_garbage(check, len(answers))

"""Lesson 11: bounds, the knee, the worksheet. Arithmetic by hand; the rest on the simulator."""

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from asserting import rewards, shows

from course.lab.prices import gpu_price, price_source
from course.lessons.lesson_11 import fleet, pictures, run, words
from course.lessons.lesson_11.check import checks
from course.lessons.lesson_11.run import Ask, LoadTestPoint, SlotsPoint, Sweep
from course.simulator.errors import SimulationError, WorkloadError
from course.summary import SLO

pytestmark = pytest.mark.usefixtures("few_requests")


def served(waits: list[float], ttft: list[float] | None = None) -> fleet.Served:
    """A request a second, each with these waits and ten tokens."""
    sent = list(map(float, range(len(waits))))
    columns = {name: [0.05] * len(waits) for name in ("tpot", "stall")}
    first = [each + 0.1 for each in (waits if ttft is None else ttft)]
    return fleet.Served(
        sent=sent,
        ttft=first,
        e2e=[each + 0.5 for each in first],
        slot_at=[came + wait for came, wait in zip(sent, waits)],
        queue=waits,
        tokens=[10.0] * len(waits),
        stamps=[came + 0.5 for came in sent for _ in range(10)],
        preemptions=0,
        **columns,
    )


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


def point(slots: int, ttft: float, in_time: float, tpot: float = 0.05) -> SlotsPoint:
    return SlotsPoint(slots, 100.0 * slots, ttft, tpot, 2 * in_time, in_time)


FALLS = Sweep((point(8, 20, 0.1), point(32, 2, 0.8), point(64, 1, 1.0), point(128, 1, 1.0)), fleet.LIMITS, 2.0, 300)


def test_the_best_setting_is_the_smallest_that_is_good_enough() -> None:
    assert FALLS.best.slots == 64 and FALLS.at(40).slots == 32


def test_the_worksheet_counts_replicas() -> None:
    filled = run.plan(qps=20.0, prompt=500, answer=20, requests=60)
    found = filled.found
    assert found.replicas == math.ceil(20.0 / (found.knee * 0.8))
    assert found.cost_per_hour == pytest.approx(found.replicas * 4 * gpu_price())
    table = str(pictures.explained(filled))
    assert "what binds" in table and price_source() in table
    own = str(pictures.explained(replace(filled, price=3.0)))
    assert "$3.00, as entered" in own and price_source() not in own
    with pytest.raises(SimulationError, match="more replicas"):
        run.plan(qps=20.0, prompt=500, answer=20, tpot=0.001, requests=60)
    with pytest.raises(WorkloadError):
        run.plan(qps=-1.0, prompt=500, answer=20, requests=60)


def test_the_sheet_is_refined_by_the_simulation_that_the_reader_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = pictures.sheet()
    asked = sheet.spec.usual | {"qps": 20, "prompt": 500, "output": 20}
    monkeypatch.setattr(pictures.run, "plan", functools.partial(run.plan, requests=60))
    sheet.widget.asked = asked
    paper = sheet.widget.paper
    assert paper["asked"] == asked and paper["replicas"] == sheet.spec.answer(asked).replicas
    sheet.widget.rested = asked
    sheet.wait()
    found, right = sheet.widget.refined, run.plan(20.0, 500, 20, requests=60).found
    assert found["asked"] == asked and found["replicas"] == right.replicas and not found["trouble"]
    assert found["low"] <= right.replicas <= found["high"] and "what binds" in found["html"]
    sheet.ask({**asked, "itl": 1})
    sheet.ask({**asked, "itl": 1, "qps": 30})
    sheet.wait()
    assert sheet.widget.refined["asked"]["qps"] == 30 and "more replicas" in sheet.widget.refined["trouble"]


def test_the_bet_on_a_hundred() -> None:
    flood = run.a_hundred()
    assert words.served_of_a_hundred(flood).answer == pytest.approx(100 * run.served_share(flood, 100.0))
    assert words.served_of_a_hundred(flood).answer == pytest.approx(list(Ask().bounds().values())[-1], rel=0.05)


def test_a8_and_a16_by_what_was_found() -> None:
    line, none = served([0.0, 9.0, 9.0, 9.0]), served([0.0] * 4)
    assert words.a8(line, none, 5).kind == "wrong" and words.a8(line, line, 5).kind == "holds"
    assert words.a8(none, none, 5).kind == "not shown"
    flood = served([0.0] * 11)  # one a second comes, and is served
    assert run.served_share(flood, 1.0) == pytest.approx(1)
    assert words.a16(Ask(), flood, 4.0).kind == "wrong" and "about 25" in words.a16(Ask(), flood, 4.0).verdict
    assert words.a16(Ask(qps=5), flood, 4.0).kind == "wrong" and words.a16(Ask(qps=1), flood, 4.0).kind == "holds"


def test_a10_tells_a_limit_from_a_load() -> None:
    crowds = [LoadTestPoint(4, 100, 0.5), LoadTestPoint(64, 500, 4.0)]
    best_at_32 = replace(FALLS, points=(point(8, 20, 0.1), point(32, 1, 1.0), point(64, 1, 1.0)))
    assert words.a10({"x": best_at_32}, crowds).kind == "only when"
    other = words.a10({"x": FALLS}, crowds)
    assert other.kind == "wrong"


def test_the_check_rewards_what_is_right() -> None:
    rewards(checks(FALLS, Ask()), Ask().qps * Ask().flops_of_prompt / Ask().peak, 64)


def test_rollouts_end_with_their_longest_answer() -> None:
    equal, spread = run.Rollouts.drawn(16, 0.0), run.Rollouts.drawn(16, 1.0)
    assert equal.done_s(0.9) == pytest.approx(equal.done_s()), "all end together"
    assert spread.done_s(0.5) < 0.5 * spread.done_s(), "the tail"
    running = [count for _, count in spread.timeline()]
    assert running == sorted(running, reverse=True) and running[-1] == 0
    assert run.Rollouts.drawn(16, 1.0, speculates=True).done_s() < spread.done_s()
    shows(pictures.draw_rollouts(16, 1.0, "90% of them", False), "for a training step", "answers still running")


def test_settings_that_make_no_difference_show_no_knee() -> None:
    flat = replace(FALLS, points=(point(1, 2, 0.69), point(8, 2, 0.7), point(16, 2, 0.69)))
    found = words.tell_operating_point(SimpleNamespace(sweep=flat))
    assert "don't show what the setting does" in found.here and found.is_disturbed
    assert "the best was **max-batch 64 with 100%**" in words.tell_operating_point(SimpleNamespace(sweep=FALLS)).here

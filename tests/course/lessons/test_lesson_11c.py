"""Lesson 11c: bills, mends, routes, adapters. Arithmetic by hand; the rest on the simulator."""

import pytest
from asserting import rewards, shows

from course.lab import simulated_70b
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11c import pictures, run
from course.lessons.lesson_11c.check import checks
from course.lessons.lesson_11c.run import Route

pytestmark = pytest.mark.usefixtures("few_requests")


def test_a_bill_is_rent_over_tokens() -> None:
    trouble = run.TROUBLES["too few slots"]
    one, two = (run.bill(trouble, n, False, 2.0) for n in (1, 2))
    assert one.per_hour == 8 and two.per_hour == 16
    assert one.per_million == pytest.approx(1e6 * 8 / 3600 / trouble.run(1, False).throughput)
    assert run.bill(trouble, 1, False, 4.0).per_million == pytest.approx(2 * one.per_million)


def test_a_full_replica_runs_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    room = simulated_70b.room_tokens(fleet.deployment())
    monkeypatch.setattr(fleet, "SLOTS", 100)  # more than there's room for of the longest
    full = run.regimes().values()
    run.regimes.cache_clear()
    assert all(each.slots * (each.prompt + each.answer) <= room for each in full)
    assert max(each.slots for each in full) == fleet.SLOTS > min(each.slots for each in full)


def test_three_troubles_want_three_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LEAST", 320)  # a line needs time to grow
    slots, work, slow = run.TROUBLES.values()
    assert slots.run(1, True).attainment(slots.slo) > slots.run(1, False).attainment(slots.slo)
    assert work.enough(True) != 1
    assert slow.enough(False) is None and slow.enough(True) == 1


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


def test_a_step_reads_the_adapters_that_occur_in_it() -> None:
    model = "Llama-3.1 8B on one H100"
    plain, one, many = (run.itl_with_adapters(model, 32, n) for n in (0, 1, 64))
    expected = 64 * (1 - (1 - 1 / 64) ** 32)
    assert (many - plain) / (one - plain) == pytest.approx(expected, rel=0.01)
    shows(pictures.draw_adapters(model, 32, 16, 64), "64 adapters: a step takes")
    assert "64" in str(pictures.adapters_bill(model, 16, 64)) and "0.0 GB" in str(pictures.adapters_bill(model, 16, 64))


def test_the_check_rewards_what_is_right() -> None:
    route = Route(small=0.0001, large=0.0007)
    troubles = list(run.TROUBLES.values())
    mends = ["setting" if t.enough(True) == 1 else "replicas" if t.enough(False) else "neither" for t in troubles]
    million = run.bill(troubles[0], 2, False, 2.0).per_million
    rewards(checks(troubles, route, 2.0), mends, million, 1000 * route.routed(0.1))

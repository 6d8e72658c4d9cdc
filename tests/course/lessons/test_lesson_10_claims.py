"""Lesson 10: its claims and its check, on streams made by hand."""

from dataclasses import replace

import pytest
from asserting import refuses_garbage, shows
from made_stream import COSTS, TRIPS, busy, passed

from course.lab.lab import Lab
from course.lessons.lesson_10 import batching, claims, leaving
from course.lessons.lesson_10 import checks as grading
from course.lessons.lesson_10.leaving import GATEWAY, STRAIGHT, Crowd
from course.lessons.lesson_10.readers import Answer
from course.lessons.lesson_10b import claims as claims_10b
from course.lessons.lesson_10b import geography
from course.lessons.lesson_10b.checks import checks as network_checks
from course.lessons.lesson_10c import claims as claims_10c
from course.lessons.lesson_10c.checks import checks as client_checks

# ---------------------------------------------------------------- claims


def test_a5_is_of_a_size_only_with_the_right_buffer() -> None:
    idle = busy(cpu=0.3)
    assert claims.a5(passed(), [passed(bunch=6)], idle).kind == "holds"
    assert claims.a5(passed(), [passed(bunch=40)], idle).kind == "holds only when"
    assert claims.a5(passed(), [passed(bunch=6, told=0.5)], idle).kind == "not shown"
    assert claims.a5(passed(), [passed(bunch=6, told=0.01)], idle).kind == "not shown", "it moved down"
    assert "200 bytes" in claims.a5(passed(), [passed(bunch=6)], idle).measured


def test_a5_speaks_of_the_front_only_if_it_was_overloaded() -> None:
    overloaded, idle = (claims.a5(passed(), [passed(bunch=6)], found) for found in (busy(), busy(cpu=0.3)))
    assert overloaded.kind == "holds only when" and "late by more than 1 s" in overloaded.measured
    assert "late by" not in idle.measured


def test_d15_depends_on_who_leaves() -> None:
    def crowds(written: int, slot_at: int, in_line: int) -> dict[tuple[str, str], Crowd]:
        """Tokens that are written for those who stay, and steps in either room; of 100 tokens and 40 steps."""
        reads_on = Crowd(GATEWAY, 100, 100, 20, 40)
        steps = {leaving.SEATED: slot_at, leaving.IN_LINE: in_line}
        found = {(room, GATEWAY): reads_on for room in steps}
        return found | {(room, STRAIGHT): Crowd(STRAIGHT, 100, written, 20, count) for room, count in steps.items()}

    claim = claims.d15(crowds(76, 40, 38))
    assert claim.kind == "holds only when"
    assert "tokens saved 20%" in claim.measured and "steps saved 5%" in claim.measured
    assert claims.d15(crowds(100, 40, 40)).kind == "not shown"


def ways(streamed: float = 1.0, batched: float = 0.3, alone: float = 1.0) -> list[batching.Served]:
    """p99 as a factor of neither: of streaming, of batching a crowd, and of both for who comes alone."""
    found = []
    for load in batching.LOADS:
        for is_batched in (False, True):
            for is_streamed in (False, True):
                e2e = (batched if load == "all at once" else alone) if is_batched else 1.0
                e2e *= streamed if is_streamed else 1.0
                found.append(batching.Served(is_streamed, is_batched, load, (e2e / 2,), (e2e,)))
    return found


def test_d16_names_the_one_that_did_it() -> None:
    assert claims.d16(ways()).kind == "holds only when" and "batching ×0.30" in claims.d16(ways()).measured
    assert claims.d16(ways(batched=0.9)).kind == "not shown"
    assert claims.d16(ways(streamed=0.5)).kind == "not shown"
    assert "came alone differed by ×1.40" in claims.d16(ways(alone=1.4)).verdict


def test_e1_and_e7_follow_their_numbers() -> None:
    forms = {"streamed": Answer((0.1, 0.5, 1.0), 30), "whole": Answer((1.0,) * 3, 30)}
    assert claims.e1(forms).kind == "holds"
    assert claims.e1({**forms, "whole": Answer((2.0,) * 3, 30)}).kind == "not shown"
    assert claims.e1({**forms, "streamed": Answer((1.0, 1.0, 1.0), 30)}).kind == "wrong"
    assert claims.e7(TRIPS).kind == "holds"
    assert claims.e7([*TRIPS, replace(TRIPS[1], ttft=0.9)]).kind == "holds only when"
    assert claims.e7([replace(TRIPS[1], ttft=0.9)]).kind == "not shown"


def test_the_ledger_can_measure_each(tiny_lab: Lab) -> None:
    for name, module in (("E1", claims_10b), ("D15", claims_10c)):
        assert module.MEASURE[name](tiny_lab).id == name


# ---------------------------------------------------------------- the network, and retries


def test_distance_is_light_in_glass() -> None:
    assert geography.distance_km("Frankfurt", "Sydney") == pytest.approx(16_480, rel=0.01)
    assert geography.rtt_s("Virginia", "Virginia") == 0
    assert geography.rtt_s("Frankfurt", "Sydney", 2.0) == 2 * geography.rtt_s("Frankfurt", "Sydney", 1.0)
    budget = {"rtt_ms": 80, "handshakes": 2, "gateway_ms": 15, "queue_ms": 40, "prefill_ms": 150, "held": 0}
    assert sum(geography.hops(**budget).values()) == 3 * 80 + 15 + 40 + 150 + 2
    shows(geography.draw_hops(500.0, **budget), "447 ms of a budget of 500 ms")


# ---------------------------------------------------------------- the checks

FORMS = {"streamed": Answer((0.1, 1.0), 2), "whole": Answer((1.02, 1.02), 2)}


def test_the_checks_reward_what_is_right() -> None:
    wire, network, clients = grading.checks(passed(), COSTS), network_checks(FORMS), client_checks()
    for check, right in ((wire, (4096 / 200, 2.0, "none")), (network, (850, "Alike")), (clients, (0.24, 1.75))):
        for number, answer in enumerate(right, start=1):
            assert check(f"q{number}", answer).score == 1, (number, answer)
        refuses_garbage(check, len(right))
    late = network_checks({**FORMS, "whole": Answer((1.15, 1.15), 2)})
    assert late("q2", "streamed").score == 1 and late("q2", "alike").score == 0


def test_no_key_where_the_machine_was_too_noisy() -> None:
    noisy = network_checks({**FORMS, "whole": Answer((2.0, 2.0), 2)})
    for answer in ("streamed", "whole", "alike"):
        assert noisy("q2", answer).score == 1
    assert noisy("q2", "neither").score == 0

"""The retry storm on a real server with a tiny model, and at 70B."""

import pytest

from course.lab.lab import Lab
from course.lessons.lesson_10c import storm


def test_a_storm_on_the_real_server_counts_every_attempt(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "START_S", 0.2)
    monkeypatch.setattr(storm, "LENGTH_S", 0.4)
    monkeypatch.setattr(storm, "SERVICE_S", 0.05)
    found = storm.live(tiny_lab, only=(storm.GIVE_UP, storm.AT_ONCE), ends_s=1.5, max_queue_len=1)
    give_up, at_once = found.values()
    assert give_up.due == at_once.due, "the same users"
    assert len(give_up.offered) <= len(give_up.due) and give_up.attempts_per_request <= 1 < at_once.attempts_per_request
    assert give_up.refused and len(at_once.refused) > len(give_up.refused)
    for each in found.values():
        assert sum(each.per_second("due", 0.5).values()) * 0.5 == len(each.due)
        assert len(each.good) + len(each.refused) <= len(each.offered)


def test_at_70b_clients_or_the_server_can_end_the_storm() -> None:
    chosen = storm.at_70b((storm.GIVE_UP, storm.AT_ONCE, storm.JITTER, storm.BUDGET, storm.BREAKER))
    naive, jitter, budget, breaker = list(chosen.values())[1:]
    rates = [list(each.per_second("good", 20).values())[-2] for each in (naive, jitter, budget, breaker)]
    assert rates[:2] == [0, 0] and min(rates[2:]) > 2, "base load is 3.5 a second"
    assert naive.attempts_per_request > 4 and budget.attempts_per_request <= 1.1
    assert breaker.refused and breaker.goodput_after > budget.goodput_after > naive.goodput_after
    servers = storm.servers_70b()
    _, drops, refuses = (each.goodput_after for each in servers.values())
    assert drops > 0.9 and refuses > 0.9
    assert storm.amplification(chosen).answer == naive.attempts_per_request
    assert "metastable" in str(storm.told(chosen))


def test_attempts_with_independent_failures() -> None:
    assert storm.expected_attempts(0.5, 3) == 1.75 and storm.expected_attempts(1.0, 3) == 3

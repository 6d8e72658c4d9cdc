"""The retry storm on a real server with a tiny model, and at 70B."""

import pytest

from course.lab import storm
from course.lab.lab import Lab


def test_a_storm_on_the_real_server_counts_every_attempt(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: storm.policies(storm.PATIENCE_S)[name] for name in ("give up", "retry at once")}
    monkeypatch.setattr(storm, "policies", lambda patience_s: chosen)
    monkeypatch.setattr(storm, "START_S", 0.2)
    monkeypatch.setattr(storm, "LENGTH_S", 0.4)
    monkeypatch.setattr(storm, "SERVICE_S", 0.05)
    found = storm.live(tiny_lab, ends_s=1.5, max_queue_len=1)
    give_up, at_once = found["give up"], found["retry at once"]
    assert give_up.due == at_once.due, "the same users"
    assert len(give_up.offered) <= len(give_up.due) and give_up.attempts_per_request <= 1 < at_once.attempts_per_request
    assert give_up.refused and len(at_once.refused) > len(give_up.refused)
    for each in found.values():
        assert sum(each.per_second("due", 0.5).values()) * 0.5 == len(each.due)
        assert len(each.good) + len(each.refused) <= len(each.offered)


def test_at_70b_only_a_limit_on_retries_ends_the_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: storm.policies(6.0)[name] for name in ("retry at once", storm.BUDGET, storm.BREAKER)}
    monkeypatch.setattr(storm, "policies", lambda patience_s: chosen)
    monkeypatch.setattr(storm, "COUNT_70B", 1000)
    naive, budget, breaker = storm.at_70b.__wrapped__().values()
    rates = [list(each.per_second("good", 20).values())[-2] for each in (naive, budget, breaker)]
    assert rates[0] == 0 and min(rates[1:]) > 2, "base load is 3.5 a second"
    assert naive.attempts_per_request > 4 and budget.attempts_per_request <= 1.1
    assert breaker.refused and breaker.goodput_after > budget.goodput_after > naive.goodput_after

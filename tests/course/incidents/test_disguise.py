"""The log of changes: harmless entries are such as the service can have had."""

import pytest

from course.incidents.causes import CAUSES, Case, Draw, base
from course.incidents.disguise import DAYS, FITS, INNOCENT, MORNING, NUM_INNOCENT, change_log

WHAT_HAPPENED = "what happened"
BY_CHANGE = {each["change"]: each.get("on") for each in INNOCENT}


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    """One of each cause, at any load: a log of changes doesn't depend on it, and measuring capacities takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "capacity", lambda service: 10.0)
        return {name: cause.make(Draw(name)) for name, cause in CAUSES.items()}


def test_no_entry_contradicts_the_service(cases: dict[str, Case]) -> None:
    seen = set()
    for cause in CAUSES.values():
        service = cases[cause.name].before
        for seed in range(20):
            for _, change in change_log(Draw(f"{cause.name} {seed}"), WHAT_HAPPENED, 3, service):
                needed = BY_CHANGE.get(change)
                assert needed is None or FITS[needed](service), (cause.name, change)
                alone = service.fleet.replicas == 1 and service.fleet.autoscaling is None
                assert not (alone and ("one replica" in change or "Router" in change)), (cause.name, change)
                assert service.engine.speculative is None or "Draft model" not in change, (cause.name, change)
                seen.add(change)
    assert {*BY_CHANGE, WHAT_HAPPENED} == seen, "each can be drawn for some service"


def test_what_happened_is_one_of_two_entries_of_the_morning_where_the_log_has_it() -> None:
    service = CAUSES["few_slots"].make(Draw("few_slots")).before
    for difficulty, shares in {1: (1.0, 1.0), 2: (0.6, 0.8), 3: (0.4, 0.6)}.items():
        logs = [change_log(Draw(seed), WHAT_HAPPENED, difficulty, service) for seed in range(300)]
        told = [log for log in logs if WHAT_HAPPENED in dict(log).values()]
        assert shares[0] <= len(told) / len(logs) <= shares[1]
        for log in logs:
            moments = [moment for moment, _ in log]
            assert moments == [moment for moment in (*DAYS, *MORNING) if moment in moments], "in order"
            assert len(log) == NUM_INNOCENT[difficulty] + (WHAT_HAPPENED in dict(log).values())
        for log in told:
            morning = [change for moment, change in log if moment in MORNING]
            assert WHAT_HAPPENED in morning and len(morning) == 2


def test_harmless_changes_begin_as_causes_do(cases: dict[str, Case]) -> None:
    """An entry can't be told from its first words alone."""
    begin = {case.change.partition(":")[0] for case in cases.values()}
    assert len(begin.intersection(change.partition(":")[0] for change in BY_CHANGE)) >= 10

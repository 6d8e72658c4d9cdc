"""The daily incident: streak, archive, par and yesterday's solution."""

from collections.abc import Callable
from datetime import date, timedelta

import pytest

from course.incidents import Incident
from course.incidents.causes import CAUSES
from course.incidents.daily import DailyResults, DayResult, archive
from course.incidents.players import best_runs, played_by
from course.lab.streak import streak

TODAY = date(2026, 11, 27)


def played(*back: int, on_the_day: bool = True) -> DailyResults:
    days = {str(TODAY - timedelta(days=n)): DayResult(score=80, questions=5, on_the_day=on_the_day) for n in back}
    return DailyResults(days=days)


@pytest.mark.parametrize(
    ("results", "days"),
    [
        (played(), 0),
        (played(0, 1, 2), 3),
        (played(1, 2), 2),
        (played(2, 3), 0),
        (played(0, 2), 1),
        (played(0, 1, on_the_day=False), 0),
    ],
)
def test_a_streak_ends_today_or_yesterday_and_has_no_gap(results: DailyResults, days: int) -> None:
    assert streak(results.days, TODAY) == days


def test_the_archive_has_two_weeks_and_what_was_made_of_them() -> None:
    lines = archive(played(3), TODAY).splitlines()
    assert lines[0] == "2026-11-27  not played" and lines[3] == "2026-11-24  80/100, 5 questions"
    assert "streak: 0" in lines


@pytest.mark.usefixtures("stopped_clock")
def test_the_simulators_own_players_and_their_order(draw: Callable[[str, int], Incident]) -> None:
    incident = draw("few_slots", 1)
    runs = best_runs(incident)
    assert [run.score for run in runs] == sorted((run.score for run in runs), reverse=True) and len(runs) == 3
    assert runs[0].score >= 90 and runs[0].helped == 10 and any("deployed" in step for step in runs[0].steps)
    assert played_by("buys machines", incident).score < 35


def test_what_was_reported_is_linked_and_has_a_number() -> None:
    told = {cause.source: cause.reported for cause in CAUSES.values() if cause.source}
    assert len(told) >= 22
    assert all(address.startswith("https://github.com/") for address in told)
    assert all(any(sign.isdigit() for sign in words) for words in told.values())

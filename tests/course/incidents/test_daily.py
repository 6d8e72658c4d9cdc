"""The daily incident: streak, archive, par and yesterday's solution; and the sum on a napkin."""

import math
import re
from collections.abc import Callable
from datetime import date, timedelta

import pytest

from course.incidents import Incident
from course.incidents.causes import CAUSES, Draw
from course.incidents.daily import DailyResults, DayResult, archive, streak
from course.incidents.napkin import NEAR, SUMS, napkin_of
from course.incidents.players import best_runs, played_by

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
    assert streak(results, TODAY) == days


def test_the_archive_has_two_weeks_and_what_was_made_of_them() -> None:
    lines = archive(played(3), TODAY).splitlines()
    assert lines[0] == "2026-11-27  not played" and lines[3] == "2026-11-24  80/100, 5 questions"
    assert "streak: 0" in lines


@pytest.mark.parametrize("make", SUMS)
def test_a_napkin_has_one_right_answer_and_its_working(make: Callable) -> None:
    for seed in range(8):
        one = make(Draw(seed))
        assert one.value > 0 and math.isfinite(one.value) and one.working
        assert one.is_right(one.value * (1 + NEAR / 2)) and not one.is_right(one.value * (1 + 2 * NEAR))
        assert one.told(one.value).startswith("Right.") and one.told(0).startswith("Not quite.")


def test_a_day_has_its_napkin() -> None:
    assert napkin_of(TODAY) == napkin_of(TODAY) != napkin_of(TODAY - timedelta(days=1))


def test_little_s_law_on_a_napkin() -> None:
    """The question's own four numbers give the answer."""
    one = next(make for make in SUMS if make.__name__ == "in_flight")(Draw(1))
    rate, ttft, tokens, gap = (float(found) for found in re.findall(r"\d+(?:\.\d+)?", one.question))
    assert one.value == pytest.approx(rate * (ttft + tokens * gap / 1e3))


@pytest.mark.usefixtures("stopped_clock")
def test_the_simulators_own_players_and_their_order(draw: Callable[[str, int], Incident]) -> None:
    incident = draw("few_slots", 1)
    runs = best_runs(incident)
    assert [run.score for run in runs] == sorted((run.score for run in runs), reverse=True) and len(runs) == 3
    assert runs[0].score >= 90 and runs[0].helped == 10 and any("deployed" in step for step in runs[0].steps)
    assert played_by("buys machines", incident).score < 35


def test_what_was_reported_is_linked_and_has_a_number() -> None:
    told = {cause.source: cause.reported for cause in CAUSES.values() if cause.source}
    assert len(told) >= 12
    assert all(address.startswith("https://github.com/") for address in told)
    assert all(any(sign.isdigit() for sign in words) for words in told.values())

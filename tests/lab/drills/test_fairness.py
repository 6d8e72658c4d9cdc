"""Right sentences are not punished and wrong ones are, whatever words they share."""

import re

import pytest
from lab.drills import answers

from course.lab.drills.desk import MILESTONES
from course.lab.drills.drill import DrawnDrill
from course.lab.drills.grade import grade
from course.lab.drills.library import find_drill
from course.lab.drills.library.decoding import accepted
from course.lab.drills.reading import Numbers, read
from course.lab.drills.scoring import slips

NOTHING = Numbers({}, {})
MANY_SEEDS = range(60)


def credits(drawn: DrawnDrill, text: str, dimension: str) -> float:
    """Points of what earned some."""
    return sum(e.points for e in grade(drawn, text).dimension(dimension).evidence if e.points > 0)


def losses(drawn: DrawnDrill, text: str, dimension: str) -> float:
    return sum(e.points for e in grade(drawn, text).dimension(dimension).evidence if e.points < 0)


def test_a_right_statement_is_no_popular_error_and_a_wrong_one_is() -> None:
    for right in answers.RIGHT_STATEMENTS:
        assert slips(read(right, NOTHING)) == [], right
    for wrong in answers.WRONG_STATEMENTS:
        assert len(slips(read(wrong, NOTHING))) == 1, wrong


def test_what_is_wrong_costs_points_and_what_is_right_does_not() -> None:
    for drill, (wrong, right) in answers.CORRECTED.items():
        drawn = find_drill(drill).drawn()
        assert losses(drawn, wrong, "interventions") < 0 == losses(drawn, right, "interventions"), drill


def test_a_p99_fits_two_systems_that_differ() -> None:
    for seed in MANY_SEEDS:
        derived = find_drill("p99-8s").drawn(seed).numbers.derived
        assert derived["slow_ttft"].value > 3
        assert derived["slow_itl"].value > 2 * 0.02, "smooth text in the one, not in the other"


def test_a_new_draft_always_wins_a_little_and_has_a_break_even() -> None:
    for seed in MANY_SEEDS:
        given, derived = (find_drill("new-draft").drawn(seed).numbers.__dict__[key] for key in ("given", "derived"))
        assert 0 < derived["percent"].value < derived["jump"].value
        even = derived["break_even"].value
        assert given["old"].value < even < given["new"].value
        round_old = 1 + given["k"].value * given["old_cost"].value
        speed = accepted(even, given["k"].value) / derived["round_new"].value
        assert speed == pytest.approx(accepted(given["old"].value, given["k"].value) / round_old, rel=0.02)


def test_the_nightly_job_fits_into_its_window() -> None:
    for seed in MANY_SEEDS:
        numbers = find_drill("batch-beside-chat").drawn(seed).numbers
        assert numbers.derived["hours_beside"].value < numbers.given["window"].value


@pytest.mark.parametrize(
    "second", ["ITL", "inter-token latency", "inter token latency", "time per output token", "TPOT"]
)
def test_the_clock_hears_both_numbers_by_any_name(second: str) -> None:
    _, pattern, _ = MILESTONES["two"]
    assert re.search(pattern, f"I want ttft and {second} apart".lower(), re.S)
    assert not re.search(pattern, f"I want {second} first".lower(), re.S)

"""Numbers derived from a run: phases add up, percentiles interpolate, ghosts compare like with like."""

import math
from dataclasses import replace

import pytest
from made_run import made_config, made_run

from course.lab.pictures.phases import draw_phases
from course.lab.run import percentile, phases_of
from course.lab.style import change, number
from course.lab.summary import Comparison, headline


@pytest.mark.parametrize("until", [1e9, 1.0, 0.3])
def test_phases_sum_to_elapsed_time_of_every_request(until: float) -> None:
    run = made_run(until=until)
    assert run.views
    for view in run.views:
        assert sum(phases_of(view).values()) == pytest.approx(view.borders[-1] - view.borders[0])
        assert all(duration >= 0 for duration in phases_of(view).values())


def test_percentile_interpolates_and_has_no_value_without_samples() -> None:
    assert percentile([0.0, 1.0, 2.0, 3.0], 50) == 1.5
    assert percentile([0.0, 10.0], 99) == pytest.approx(9.9)
    assert percentile([], 50) is None


SLOW, FAST = made_run(config=made_config(max_num_seqs=1)), made_run(config=made_config(max_num_seqs=8))


def test_a_comparison_says_what_was_changed_and_by_how_much_a_phase_moved() -> None:
    compared = Comparison(FAST, SLOW)
    was, now = SLOW.mean_phases()["queue"], FAST.mean_phases()["queue"]
    assert compared.told("queue", was, now) == change(was, now) and change(was, now).startswith("−")
    assert "slots 1 → 8" in compared.chips() and "not enough repeats" in compared.chips()


def test_a_run_in_progress_is_not_compared_yet() -> None:
    going = Comparison(replace(FAST, done=False), SLOW)
    assert "compared when" in going.chips() and going.told("E2E p50", 2.0, 1.0) == ""
    assert "was" not in headline(going) and "−" not in draw_phases(going, {}).svg()


def test_runs_of_other_traffic_and_stopped_ones_are_not_compared() -> None:
    for other in (made_run(num_requests=4), replace(SLOW, stopped=True)):
        assert "other traffic" in (compared := Comparison(SLOW, other)).chips() and "was" not in headline(compared)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1240, "1240"),
        (12.4, "12.4"),
        (1.24, "1.24"),
        (0.12, "0.12"),
        (2.0, "2"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.004, "0.004"),
        (-0.0003, "-0.0003"),
        (math.nan, "–"),
    ],
)
def test_numbers_have_three_digits_and_none_is_written_as_nothing(value: float, written: str) -> None:
    assert number(value) == written

"""Numbers derived from a run: phases add up, percentiles interpolate, ghosts compare like with like."""

import math

import pytest
from made_run import made_config, made_run

from course.lab.run import percentile, phases_of
from course.lab.style import change, number, seconds
from course.lab.summary import phase_rows
from minillm.core.timeline import PHASES


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


def test_phase_table_compares_with_the_previous_run() -> None:
    slow, fast = made_run(config=made_config(max_num_seqs=1)), made_run(config=made_config(max_num_seqs=8))
    rows = phase_rows(fast, slow)
    assert [row[0] for row in rows[: len(PHASES)]] == ["queue", "prefill", "first token", "decode", "stream"]
    assert rows[0][3] == seconds(slow.mean_phases()["queue"])
    assert rows[0][4] == change(slow.mean_phases()["queue"], fast.mean_phases()["queue"])
    assert rows[0][4].startswith("−")


def test_a_run_of_other_traffic_is_no_ghost() -> None:
    rows = phase_rows(made_run(num_requests=8), made_run(num_requests=4))
    assert all(len(row) == 3 for row in rows)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1240, "1240"), (12.4, "12.4"), (1.24, "1.24"), (0.12, "0.12"), (2.0, "2"),
        (9.996, "10.0"), (99.96, "100"), (0.004, "0.004"), (-0.0003, "-0.0003"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_none_is_written_as_nothing(value: float, written: str) -> None:
    assert number(value) == written

"""The replay rewinds stamps faithfully; the ruler counts who lies beyond it."""

import pytest
from made_run import made_run

from course.lab.replay import rewind
from course.lab.ruler import Ruler, buckets
from course.lab.run import phases_of


@pytest.mark.parametrize("moment", [0.0, 0.15, 0.5, 1.0, 99.0])
def test_rewinding_shows_nothing_of_the_future(moment: float) -> None:
    run = made_run(num_requests=4)
    past = rewind(run, moment)
    now = run.start + moment
    for view in past.views:
        assert max(view.borders) <= now
        assert all(stamp <= now for stamp in view.deliveries)
        assert sum(phases_of(view).values()) == pytest.approx(max(view.borders) - view.borders[0])
    assert all(step.end <= now for step in past.steps)


def test_the_ruler_counts_what_is_beyond_it() -> None:
    run = made_run(num_requests=10)
    ruler = Ruler(run, "TTFT")
    at_99 = ruler.view.value
    assert "1 beyond" in at_99
    ruler.set(q=50)
    assert "5 beyond" in ruler.view.value
    ruler.set(metric="E2E")
    assert "E2E" in ruler.view.value


def test_buckets_hold_every_value_once() -> None:
    groups = buckets(made_run(num_requests=10, prompt=200), "ITL")
    assert sorted(groups["all"]) == sorted(
        value for name, values in groups.items() if name != "all" for value in values
    )
    assert set(groups) == {"all", "65–256 tokens"}

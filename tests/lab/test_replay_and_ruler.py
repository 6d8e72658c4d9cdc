"""The replay rewinds stamps faithfully; the ruler counts who lies beyond it."""

import xml.etree.ElementTree as ET

import pytest
from made_run import made_run

from course.lab.replay import Replay, narrate, phase_at, rewind
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


def test_rewinding_to_the_end_changes_nothing() -> None:
    run = made_run(num_requests=4)
    assert rewind(run, run.duration + 0.01).views == [*run.views] or rewind(run, run.duration + 0.01).done


def test_the_narration_follows_the_phases() -> None:
    run = made_run(num_requests=6)
    view, row = run.row_of(5), run.rows[5]
    queue, prefill = view.borders[1], view.borders[2]
    assert "waits" in narrate(run, row, (view.borders[0] + queue) / 2 - run.start)
    assert "reads its prompt" in narrate(run, row, (queue + prefill) / 2 - run.start)
    assert "writes" in narrate(run, row, (view.borders[3] + view.borders[4]) / 2 - run.start)
    assert "finished" in narrate(run, row, run.duration + 1)
    assert phase_at(view, view.borders[0] - 1) is None


def test_moving_the_slider_moves_the_picture() -> None:
    replay = Replay(made_run(num_requests=2), row=1)
    end = replay.view.value
    replay.slider.value = 100
    assert replay.view.value != end
    ET.fromstring(replay.view.value[replay.view.value.index("<svg") : replay.view.value.index("</svg>") + 6])


def test_the_ruler_counts_what_is_beyond_it() -> None:
    run = made_run(num_requests=10)
    ruler = Ruler(run, "TTFT")
    at_99 = ruler.view.value
    assert "1 beyond" in at_99
    ruler.handle.value = 50
    assert "5 beyond" in ruler.view.value
    ruler.metric.value = "E2E"
    assert "E2E" in ruler.view.value


def test_buckets_hold_every_value_once() -> None:
    groups = buckets(made_run(num_requests=10, prompt=200), "ITL")
    assert sorted(groups["all"]) == sorted(
        value for name, values in groups.items() if name != "all" for value in values
    )
    assert set(groups) == {"all", "65–256 tokens"}

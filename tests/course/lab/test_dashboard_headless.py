"""The dashboard without a kernel or a browser, on the real engine with a tiny model."""

import time

import pytest
from patience import PATIENCE_S

from course.lab.controls import OFF
from course.lab.dashboard import LOADING_HTML, Dashboard
from course.lab.lab import Lab
from course.lab.run import phases_of
from course.lab.svg import PATTERNS
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import MAKERS, LabWorkload, PromptArrival, workload

WAIT_S = PATIENCE_S


def long_traffic(count: int = 6, tokens: int = 400) -> LabWorkload:
    return LabWorkload(
        "long", "Answers that take a while.", tuple(PromptArrival(0.0, q, tokens) for q in CHAT_QUESTIONS[:count])
    )


def test_run_shows_a_picture_and_phases_that_sum(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    before = dash.view.value
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    assert "<svg" in dash.view.value
    assert dash.view.value != before
    assert dash.run.done
    assert len(dash.run.finished) == len(dash.run.rows)
    for view, output in zip(dash.run.views, dash.run.outputs):
        assert sum(phases_of(view).values()) == pytest.approx(output.timeline.e2e)


@pytest.mark.parametrize("name", MAKERS)
def test_every_workload_runs(tiny_lab: Lab, name: str) -> None:
    run = tiny_lab.run(name)
    assert run.done and len(run.finished) == len(run.rows) > 1
    assert [row.view.num_output_tokens for row in run.rows] == [a.max_tokens for a in tiny_lab.workload(name).arrivals]
    assert all("".join(row.texts) == row.view.text for row in run.rows), "the client keeps every delivery's text"


def test_a_toggle_reaches_the_engine_and_the_previous_run_becomes_the_ghost(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "rag")
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    assert (first := dash.run).snapshot.prefix_hits > 0
    dash.controls["enable_prefix_caching"].value = False
    dash.controls["max_num_seqs"].value = 1
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    assert dash.previous is first and dash.run.snapshot.prefix_hits == 0
    assert max(step.num_running for step in dash.run.steps) == 1
    assert "previous" in dash.view.value


def test_stop_ends_everything_soon_and_frees_the_seats(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, long_traffic())
    dash.view.value = LOADING_HTML
    dash.stop_button.click()
    assert "Stopping" in dash.view.value  # a model takes seconds to load
    dash.run_button.click()
    while dash.run is None or not dash.run.steps:
        time.sleep(0.01)
    assert not dash.stop_button.disabled
    dash.stop_button.click()
    assert dash.wait(WAIT_S) and dash.run.stopped
    assert any(view.finish_reason == "abort" for view in dash.run.views)
    assert all(view.finish_reason is not None for view in dash.run.views)
    assert all(owner < 0 for owner in dash.run.snapshot.block_owners)
    assert dash.stop_button.disabled and not dash.run_button.disabled and "stopped" in dash.view.value


def test_reset_puts_the_controls_back_and_runs_stay(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    dash.controls["max_num_seqs"].value = 12
    dash.run_button.click()
    dash.wait(WAIT_S)
    dash.reset_button.click()
    assert dash.controls["max_num_seqs"].value == 4
    assert dash.run.config.max_num_seqs == 12 and "<svg" in dash.view.value


def test_controls_stand_still_during_a_run_and_equal_runs_are_noise(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, long_traffic(tokens=60))
    dash.run_button.click()
    worker = dash._worker
    dash.run_button.click()
    assert dash._worker is worker, "a second click while it runs is ignored"
    assert dash.controls["max_num_seqs"].disabled
    assert dash.wait(WAIT_S) and not dash.controls["max_num_seqs"].disabled
    assert dash.previous is None
    dash.pin_button.click()
    assert dash.pinned == {"A": dash.run}
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    assert "nothing changed" in dash.view.value and "1 repeat here" in dash.view.value
    assert ">A</text>" in dash.view.value


def test_patterns_can_be_switched_on_and_off(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATTERNS, raising=False)
    dash = Dashboard(tiny_lab, "chat")
    dash.run_button.click()
    assert dash.wait(WAIT_S) and "<pattern" not in dash.view.value
    dash.patterns.value = True
    assert "<pattern" in dash.view.value and "<b>done</b>" in dash.view.value
    dash.patterns.value = False
    assert "<pattern" not in dash.view.value


def test_a_prompt_of_your_own_is_answered_and_an_empty_one_asked_for(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "your own prompt")
    dash.run_button.click()
    assert dash.wait(WAIT_S) and "Type a prompt" in dash.view.value
    dash.prompt.value = "Why is the sky <blue>?"
    dash.run_button.click()
    assert dash.wait(WAIT_S) and dash.run.finished
    assert "sky &lt;blue&gt;" in dash.view.value and "<pre" in dash.view.value


def test_a_run_that_never_began_is_compared_with_nothing(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    dash.controls.config = lambda: tiny_lab.config(max_model_len=100_000)
    dash.run_button.click()
    assert dash.wait(WAIT_S) and "cannot run" in dash.view.value
    assert dash.run is not None and dash.previous is None


def test_a_configuration_that_cannot_run_says_why(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat", max_model_len=100_000)
    dash.run_button.click()
    assert dash.wait(WAIT_S)
    assert "cannot run" in dash.view.value
    assert "max_model_len" in dash.view.value
    assert not dash.run_button.disabled


def test_a_burst_arrives_before_the_first_step_and_in_order(tiny_lab: Lab) -> None:
    run = tiny_lab.run("burst")
    assert [row.view.arrival_index for row in run.rows] == list(range(len(run.rows)))
    assert len(run.steps[0].shares) + run.steps[0].num_waiting == len(run.rows)


def test_a_closed_loop_client_never_has_more_open_than_its_cap(tiny_lab: Lab) -> None:
    arrivals = tuple(PromptArrival(0.0, question, 8) for question in CHAT_QUESTIONS[:6])
    run = tiny_lab.run(LabWorkload("capped", "", arrivals, max_in_flight=2))
    assert len(run.finished) == 6
    assert max(step.num_running + step.num_waiting for step in run.steps) <= 2
    assert run.rows[-1].sent > run.rows[-1].due


def test_controls_show_off_for_none_and_give_none_back(tiny_lab: Lab) -> None:
    controls = Dashboard(tiny_lab, "chat").controls
    assert controls["max_queue_len"].value == OFF
    assert controls.config() == tiny_lab.config()
    controls["max_queue_len"].value = 4
    assert controls.config().max_queue_len == 4


def test_workloads_repeat_with_their_seed_and_differ_with_another() -> None:
    assert workload("mixed", seed=3) == workload("mixed", seed=3)
    assert workload("mixed", seed=3) != workload("mixed", seed=4)
    with pytest.raises(LookupError, match="chat"):
        workload("tea")

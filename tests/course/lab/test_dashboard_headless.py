"""The dashboard without a kernel or a browser, on the real engine with a tiny model."""

import gzip
import json
import re
import time
from pathlib import Path

import pytest
from patience import PATIENCE_S

from course.lab.controls import CONTROLS, FIELDS
from course.lab.dashboard import LOADING, STOPPING, Dashboard
from course.lab.lab import Lab
from course.lab.run import phases_of
from course.lab.simulated_device import VARIABLE
from course.lab.svg import PATTERNS
from course.lab.texts import CHAT_QUESTIONS
from course.lab.view import bundle, library
from course.lab.view.record import DEVICE, record
from course.lab.view.trace import TraceFeed, extended, trace_of
from course.lab.workloads import LabWorkload, PromptArrival, workload
from minillm.core.timeline import PHASES

WAIT_S = PATIENCE_S


def long_traffic(count: int = 6, tokens: int = 400) -> LabWorkload:
    return LabWorkload(
        "long", "Answers that take a while.", tuple(PromptArrival(0.0, q, tokens) for q in CHAT_QUESTIONS[:count])
    )


def played(dash: Dashboard) -> dict:
    """One run with what the controls show, as the browser is told it."""
    dash.start()
    assert dash.wait(WAIT_S) and dash.widget.status["state"] == "idle", dash.widget.status
    return dash.widget.shown["run"]


def test_the_browser_is_told_every_stamp_of_a_run(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    told = json.loads(json.dumps(played(dash)))
    run = dash.run
    assert run.done and told["state"] == "done" and len(run.finished) == len(told["rows"])
    for view, output, row in zip(run.views, run.outputs, told["rows"]):
        assert sum(phases_of(view).values()) == pytest.approx(output.timeline.e2e)
        assert row["borders"] == pytest.approx([border - run.start for border in view.borders], abs=1e-4)
        assert row["tokens"] == pytest.approx([stamp - run.start for stamp in view.deliveries], abs=1e-4)
        assert "".join(row["texts"]) == view.text
    assert [step["start"] for step in told["steps"]] == pytest.approx(
        [s.start - run.start for s in run.steps], abs=1e-4
    )
    assert all(sum(count for _, count in owners) == told["blocks"] for _, owners in told["kv"])
    assert max(sum(n for owner, n in owners if owner >= 0) for _, owners in told["kv"]) > 0
    assert "<svg" in dash.static_html()


def test_news_add_up_to_the_whole(tiny_lab: Lab) -> None:
    traffic = long_traffic(tokens=120)
    session = tiny_lab.start(traffic, tiny_lab.config())
    feed, run = None, session.run()
    while not run.done:
        session.wait(0.01)
        run = session.run()
        if feed is None:
            feed = TraceFeed(run, traffic, FIELDS)
            told, pieces = feed.head, 0
        more = feed.more(run)
        told, pieces = extended(told, more), pieces + bool(more["rows"])
    assert pieces > 2 and told == trace_of(run, traffic, FIELDS)


def test_a_dashboard_opens_with_a_recorded_run_that_nothing_is_compared_with(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "rag")
    assert dash.widget.shown["run"]["traffic"] == "rag" and "recorded" in dash.widget.shown["note"]
    assert dash.run is None
    played(dash)
    assert dash.widget.shown["before"] is None and dash.widget.shown["id"] == 1


def test_the_view_is_one_small_script_that_loads_nothing() -> None:
    page, widget, style = bundle.page_script(), bundle.widget_script(), bundle.STYLE.read_text(encoding="utf-8")
    assert len(gzip.compress((page + style).encode())) < 150_000
    assert re.findall(r"^(?:import|export) .*", widget, re.M) == ["export default { render: render };"]
    assert not re.findall(r"^(?:import|export) .*", page, re.M)
    assert not re.search(r"https?://|@import|url\(", page + style)


@pytest.mark.parametrize("recipe", [each["id"] for each in library.recipes()])
def test_a_recipe_names_traffic_and_settings_that_exist_and_were_recorded(recipe: str) -> None:
    asked = library.recipe_named(recipe)
    offered = {control.field: control.choices or (False, True) for control in CONTROLS if control.first}
    for fields in (asked["first"], {**asked["first"], **asked["change"]}):
        assert all(value in offered[name] for name, value in fields.items())
        assert any(each["fields"] == fields for each in library.recorded(asked["traffic"]))


@pytest.mark.parametrize(("traffic", "fields"), [("rag", {}), ("burst", {"max_num_seqs": 12})])
def test_recorded_runs_are_what_is_simulated_today(
    traffic: str, fields: dict, smollm_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, DEVICE)
    lab = Lab(short=False)
    found = json.loads(json.dumps(record(lab, traffic, fields)))
    kept = next(each for each in library.recorded(traffic) if each["fields"] == fields)
    assert found == kept, "python -m course.lab.view.record"
    lab.close()


def test_a_recipe_makes_both_runs_and_pins_them(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    with pytest.raises(LookupError, match="rag-uncached"):
        dash.try_out("tea")
    dash.try_out("rag-uncached")
    assert dash.wait(WAIT_S)
    shown = dash.widget.shown
    assert dash.pinned["A"].config.enable_prefix_caching and not dash.pinned["B"].config.enable_prefix_caching
    assert dash.pinned["B"] is dash.run and dash.pinned["A"] is dash.previous
    assert (shown["id"], shown["beforeName"], shown["recipe"]) == (3, "A", "rag-uncached"), "A was played twice"
    assert {judged["verdict"] for judged in shown["noise"].values()} <= {"changed", "same", "unsure"}
    assert set(PHASES) <= set(shown["noise"])
    assert dash.widget.settings["fields"]["enable_prefix_caching"] is False


def test_a_toggle_reaches_the_engine_and_the_previous_run_becomes_the_ghost(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "rag")
    played(dash)
    assert (first := dash.run).snapshot.prefix_hits > 0
    dash.set(enable_prefix_caching=False, max_num_seqs=1)
    played(dash)
    assert dash.previous is first and dash.run.snapshot.prefix_hits == 0
    assert max(step.num_running for step in dash.run.steps) == 1
    assert dash.widget.shown["before"]["config"]["max_num_seqs"] == 4
    assert dash.widget.shown["beforeName"] == "previous"


def test_stop_ends_everything_soon_and_frees_the_seats(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, long_traffic())
    dash.widget.status = {"state": "busy", "words": LOADING}
    dash.stop()
    assert dash.widget.status["words"] == STOPPING  # a model takes seconds to load
    dash.start()
    while dash.run is None or not dash.run.steps:
        time.sleep(0.01)
    dash.stop()
    assert dash.wait(WAIT_S) and dash.run.stopped
    assert any(view.finish_reason == "abort" for view in dash.run.views)
    assert all(view.finish_reason is not None for view in dash.run.views)
    assert all(owner < 0 for owner in dash.run.snapshot.block_owners)
    assert dash.widget.shown["run"]["state"] == "stopped" and dash.widget.status["state"] == "idle"


def test_reset_puts_the_controls_back_and_runs_stay(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    dash.set(max_num_seqs=12)
    played(dash)
    dash.reset()
    assert dash.widget.settings["fields"]["max_num_seqs"] == 4
    assert dash.run.config.max_num_seqs == 12


def test_a_second_start_is_ignored_and_equal_runs_are_noise(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, long_traffic(tokens=60))
    dash.start()
    worker = dash._worker
    dash.start()
    assert dash._worker is worker, "a second click while it runs is ignored"
    assert dash.wait(WAIT_S) and dash.previous is None
    dash.pin()
    dash.pin()
    assert list(dash.pinned) == ["A"] and dash.pinned["A"] is dash.run
    played(dash)
    shown = dash.widget.shown
    assert shown["beforeName"] == "A" and "1 repeat here" in shown["note"]
    assert "changed" not in {judged["verdict"] for judged in shown["noise"].values()}


def test_what_the_browser_asks_for_is_done_and_nothing_else(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, long_traffic(tokens=200))
    dash._asked({"do": "erase"})
    dash._asked({})
    assert not dash.is_busy
    dash._asked({"do": "run"})
    while dash.run is None or not dash.run.steps:
        time.sleep(0.01)
    dash._asked({"do": "whole"})
    assert dash.widget.shown["run"]["steps"], "a page that is opened in mid-run has what came before"
    dash._asked({"do": "stop"})
    assert dash.wait(WAIT_S) and dash.run.stopped


def test_patterns_can_be_switched_on_and_off(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATTERNS, "0")
    dash = Dashboard(tiny_lab, "chat")
    played(dash)
    assert "<pattern" not in dash.static_html()
    dash.widget.settings = {**dash.widget.settings, "patterns": True}
    assert "<pattern" in dash.static_html()


def test_a_prompt_of_your_own_is_answered_and_an_empty_one_asked_for(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    played(dash)
    dash.set(traffic="your own prompt")
    dash.start()
    assert dash.wait(WAIT_S) and "Type a prompt" in dash.widget.status["words"]
    assert dash.widget.shown["run"]["traffic"] == "chat", "the result stays"
    dash.set(prompt="Why is the sky <blue>?")
    told = played(dash)
    assert dash.run.finished and told["rows"][0]["asked"] == "Why is the sky <blue>?"


def test_a_run_that_never_began_leaves_the_one_before_on_show(tiny_lab: Lab) -> None:
    dash = Dashboard(tiny_lab, "chat")
    played(dash)
    dash.set(max_num_seqs="many")
    dash.start()
    assert (
        dash.wait(WAIT_S) and dash.widget.status["state"] == "failed" and "max_num_seqs" in dash.widget.status["words"]
    )
    assert dash.run is not None and dash.previous is None


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


def test_controls_offer_what_the_lab_starts_with_and_five_at_once(tiny_lab: Lab) -> None:
    spec = Dashboard(tiny_lab, "chat", max_num_seqs=5).widget.spec
    slots = next(control for control in spec["controls"] if control["field"] == "max_num_seqs")
    assert slots["choices"] == [1, 2, 3, 4, 5, 6, 8, 12, 16, 32] and spec["start"]["max_queue_len"] is None
    assert sum(control["first"] for control in spec["controls"]) == 5
    assert {control["phase"] for control in spec["controls"]} <= set(PHASES)
    json.dumps(spec)


def test_workloads_repeat_with_their_seed_and_differ_with_another() -> None:
    assert workload("mixed", seed=3) == workload("mixed", seed=3)
    assert workload("mixed", seed=3) != workload("mixed", seed=4)
    with pytest.raises(LookupError, match="chat"):
        workload("tea")

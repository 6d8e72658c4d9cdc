"""Lesson 12: two incidents that look alike, what changes do to them, the pictures, and the check."""

from dataclasses import replace

import pytest
from asserting import rewards

from course.grading import Checks
from course.incidents import Incident
from course.incidents.dumps.sums import sums_of
from course.incidents.evidence import NamedRows
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.outcome import UNANSWERED
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.reveal import Reveal
from course.lab.lab import Lab
from course.lab.predict import Prediction
from course.lessons.lesson_12 import pictures, run, simulated, words
from course.lessons.lesson_12.check import checks


@pytest.fixture(scope="module")
def first() -> Incident:
    return run.first()


@pytest.fixture(scope="module")
def second() -> Incident:
    return run.second()


@pytest.fixture(scope="module")
def truth(second: Incident) -> Reveal:
    """The second incident's, with the first four of the changes that the lesson tries."""
    played = second.fresh()
    played.answer("queue")
    played.grade()
    return played.reveal(run.TRIED[:4])


# ---------------------------------------------------------------- look-alikes


def test_both_pages_name_the_same_metric_and_one_question_tells_them_apart(first: Incident, second: Incident) -> None:
    assert "TTFT" in first.page.alarm and "TTFT" in second.page.alarm
    outcome, readings = words.apart(first.fresh(), second.fresh())
    assert outcome.answer == run.TOLD_BY["kv_use"]
    assert outcome.answer in Prediction("?", list(run.TOLD_BY.values())).options
    rows = str(readings).splitlines()[1:]  # without the heading
    assert all(row.endswith("no") for row in rows if "GPU" in row or "Arrivals" in row or "queue growing" in row)


def test_arrivals_against_last_week_are_rates() -> None:
    """A run has as many requests at any load: of more load it takes less time."""
    crowded = Incident.generate(1, cause="overload")
    now, before = crowded.window.service, crowded._hidden.scene.before.service
    assert run.reading(crowded, "arrivals") == pytest.approx(now.rate / before.rate, rel=0.1)
    assert now.rate > 1.2 * before.rate


def test_looking_at_the_twins_costs_the_learner_nothing(first: Incident, second: Incident) -> None:
    pictures.both_incidents(first.fresh(), second.fresh())
    assert first.minutes == second.minutes == 0


# ---------------------------------------------------------------- changes


def test_of_three_changes_the_pool_is_the_cure_and_the_first_is_graded(second: Incident) -> None:
    played = second.fresh()
    for question in ("kv_use", "batch"):
        played.ask(question)
    played.answer("queue", evidence=["kv_use", "batch"], ranked=["kv_budget"], cause="kv_pool")
    outcome, beside = words.tried(played, ("kv_budget", "more_slots", "double_fleet"))
    assert outcome.answer == CHANGES["kv_budget"].text
    assert outcome.answer in run.change_texts("kv_budget", "more_slots", "double_fleet")
    assert str(beside).splitlines()[-1].startswith("limit")
    assert next(c for c in played.grade().criteria if c.name == "SLO restored").earned > 0


def test_when_nothing_restores_the_promise_that_is_the_outcome(second: Incident) -> None:
    played = second.fresh()
    played.answer("queue")
    outcome, _ = words.tried(played, ("more_slots", "cuda_graphs"))
    assert outcome.answer == run.NONE_HELPS


@pytest.mark.slow
def test_cutting_people_off_helps_the_rest_and_leaves_many_with_nothing() -> None:
    contract = Incident.classic("straggler")
    contract.answer("prefill")
    effect = contract.deploy(["timeouts"])
    assert not effect.restored
    assert UNANSWERED in effect.regressions


# ---------------------------------------------------------------- pictures


def test_the_sums_of_the_incident_are_those_of_its_run(second: Incident) -> None:
    records = second.window.run.records
    mean = sum(record.request.num_prompt_tokens for record in records) / len(records)
    assert sums_of(second.window).prompt == pytest.approx(mean)
    assert f"{sums_of(second.window).pool}" in str(pictures.sums_table(second))


# ---------------------------------------------------------------- post-mortems


def test_a_limit_on_prompts_takes_the_straggler_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    limited, static = simulated.tail_of(simulated.LIMITED), simulated.tail_of(simulated.STATIC)
    assert limited.on_others == pytest.approx(1.0) and static.on_others > 1.5


# ---------------------------------------------------------------- the real engine


def test_two_illnesses_of_a_real_engine_differ_in_what_is_full(tiny_lab: Lab) -> None:
    runs = run.three_engines(tiny_lab)
    most = {name: max(step.num_running for step in one.steps) for name, one in runs.items()}
    assert most["few slots"] == most["small pool"] == run.ROOM_FOR < most["healthy"]
    held = {name: run.pool_held(one) for name, one in runs.items()}
    assert held["small pool"] == 1 > held["few slots"]
    assert len(runs["small pool"].finished) == len(runs["healthy"].finished)


# ---------------------------------------------------------------- the check


@pytest.fixture(scope="module")
def check(first: Incident, second: Incident, truth: Reveal) -> Checks:
    """It asks both incidents everything, once."""
    return checks(first, second, truth)


def test_a_check_asks_nothing_on_the_learners_clock(first: Incident, second: Incident, check: Checks) -> None:
    check("q1", "gpu")
    check("q3", 0.5)
    assert first.minutes == second.minutes == 0


def test_the_first_question_offers_questions_as_they_are_worded_and_takes_ids(check: Checks) -> None:
    options = check.questions["q1"].options
    assert set(options) == {question.text for question in QUESTIONS.values()}
    for right in ("kv_use", "KV use over time", "kv use over time"):
        assert check("q1", right).score == 1
    wrong = check("q1", "GPU utilization")
    assert wrong.score == 0 and "The answer here: KV use over time." in str(wrong)
    assert "choose one of these: TTFT and ITL, separately; " in str(check("q1", "gremlins"))


def test_where_nothing_helped_any_order_is_the_best(first: Incident, second: Incident, truth: Reveal) -> None:
    worthless = {name: {**row, "value": -0.05} for name, row in truth.tried.rows.items()}
    hopeless = replace(truth, tried=NamedRows(worthless))
    assert checks(first, second, hopeless)("q4", list(truth.effects.index[:3])).score == 3


def test_right_answers_earn_everything(first: Incident, second: Incident, truth: Reveal, check: Checks) -> None:
    shares = second.fresh().ask("phases").data["share"]
    best = list(truth.effects.index[:3])
    price = first.window.service.price_per_hour()
    rewards(check, "kv_use", sums_of(second.window).kv_requests, shares["queue"], best, price)

"""Playing one incident: the order of things, the clock, what is marked and what is said."""

import gc
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from html import escape
from pathlib import Path

import pytest
from players import expert

from course.incidents import Incident, IncidentError
from course.incidents.causes import CAUSES, Draw
from course.incidents.convict import rules_out
from course.incidents.evidence import NamedRows, as_text
from course.incidents.incident import with_cause_of
from course.incidents.interventions import BY_ID, MOST_SLOTS
from course.incidents.marking import EVIDENCE, MITIGATED, RESTORED, SLOW, WITHOUT_ALTERNATIVE
from course.incidents.outcome import Effect
from course.incidents.page import page_of
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.questions_server import BATCHES
from course.incidents.service import play
from course.simulator.cluster.run import FleetRun


@pytest.fixture
def slots(draw: Callable[[str, int], Incident], home: Path, monkeypatch: pytest.MonkeyPatch) -> Incident:
    """Too few slots; untouched, and its cause told to no other test, nor in a learner's file."""
    monkeypatch.setattr("course.incidents.incident._TOLD_HERE", set())
    return draw("few_slots", 7).fresh()


CASE = {
    "cause": "few_slots",
    "evidence": ["kv_use", "batch"],
    "ruled_out": {"kv_use": "kv_pool"},
}
"""A whole one, against too few slots."""


def criteria(incident: Incident) -> dict[str, tuple[float, float, str]]:
    return {c.name: (c.earned, c.possible, c.feedback) for c in incident.grade().criteria}


def test_the_same_seed_is_the_same_incident(slots: Incident) -> None:
    first, second = slots.fresh(), Incident.generate(7, difficulty=2, cause="few_slots")
    assert first.page == second.page
    assert first._hidden.case == second._hidden.case
    for name in ("ttft_itl", "client_server"):  # of the page, and of some minutes later
        assert first.ask(name).to_dict() == second.ask(name).to_dict()
    assert first.deploy(["more_slots"]).to_dict() == second.deploy(["more_slots"]).to_dict()


def test_other_draws_are_other_services() -> None:
    one, other = (CAUSES["few_slots"].make(Draw(f"few_slots {seed}")).now for seed in (1, 2))
    assert one.flows != other.flows


def test_the_alarming_number_is_the_runs_own(slots: Incident) -> None:
    now = slots._hidden.scene.now
    page = page_of(slots._hidden)
    assert page.kept == now.attainment < now.service.target
    slowest = max(record.ttft() for record in now.run.records if record.completed)
    assert "TTFT" in page.alarm
    assert slowest > now.service.slo.ttft


@pytest.mark.usefixtures("stopped_clock")
def test_every_question_has_an_answer_to_read_and_to_look_at(slots: Incident) -> None:
    pictures = 0
    for question in slots.questions():
        found = slots.ask(question.id)
        assert found.text
        is_missing = question.id in slots._hidden.scene.missing
        assert bool(len(found.data)) is bool(found.to_dict()["data"]) is not is_missing
        assert escape(found.question) in found._repr_html_() and "No data" * is_missing in str(found)
        pictures += "<svg" in found._repr_html_()
    assert pictures >= 8


def test_things_happen_in_order(slots: Incident) -> None:
    with pytest.raises(IncidentError, match="at least one change"):
        slots.deploy([])
    with pytest.raises(IncidentError, match="answer first"):
        slots.grade()
    with pytest.raises(IncidentError, match="after the grade"):
        slots.reveal()
    slots.answer("queue")
    with pytest.raises(IncidentError, match="has its diagnosis"):
        slots.answer("decode")


@pytest.mark.parametrize(
    "wrong", [{"evidence": ["kv_us"]}, {"ranked": ["more_seat"]}, {"evidence": [None]}, {"ranked": [7]}]
)
def test_names_that_do_not_exist_are_refused(slots: Incident, wrong: dict) -> None:
    with pytest.raises(IncidentError, match=r"no (question|intervention)"):
        slots.answer("queue", **wrong)
    with pytest.raises(IncidentError, match="did you mean 'kv_use'"):
        slots.ask("kv_usee")


@pytest.mark.parametrize(
    "wrong", [{"dominant_phase": 3}, {"secondary": "the model"}, {"dominant_phase": ["queue"]}, {"regime": "sometimes"}]
)
def test_a_phase_that_does_not_exist_or_a_blank_diagnosis_is_refused(slots: Incident, wrong: dict) -> None:
    with pytest.raises(IncidentError, match="choose one of"):
        slots.answer(**{"dominant_phase": "queue", **wrong})
    with pytest.raises(IncidentError, match="blank"):
        slots.answer(None, evidence=["kv_use"], regime="steady")
    slots.answer("Queue", secondary="none")


@pytest.mark.parametrize("phase", [None, ""])
def test_a_diagnosis_without_a_phase_can_be_graded(slots: Incident, phase: object) -> None:
    slots.answer(phase, secondary=phase, ranked=["more_slots"])
    earned, _, feedback = criteria(slots)["dominant phase"]
    assert earned == 0
    assert "Name one of queue" in feedback


@pytest.mark.usefixtures("stopped_clock")
def test_a_guess_that_is_right_is_no_diagnosis(slots: Incident) -> None:
    backed = criteria_of(slots, ["kv_use", "batch"])
    guessed = criteria_of(slots, [])
    assert guessed["minutes to mitigation"][0] >= backed["minutes to mitigation"][0] > 0, "help needs no diagnosis"
    assert guessed["evidence"][0] == guessed["SLO restored"][0] == guessed["cause"][0] == 0, "and a guess is none"
    assert backed["evidence"][0] == EVIDENCE and backed["SLO restored"][0] == WITHOUT_ALTERNATIVE * RESTORED


def criteria_of(incident: Incident, evidence: list[str]) -> dict[str, tuple[float, float, str]]:
    incident = incident.fresh()
    for name in evidence:
        incident.ask(name)
    incident.answer("queue", evidence=evidence, ranked=["more_slots"], cause="few_slots")
    incident.deploy(["more_slots"])
    return criteria(incident)


@pytest.mark.usefixtures("stopped_clock")
def test_evidence_must_have_been_seen_and_must_convict(slots: Incident) -> None:
    unseen = slots.fresh()
    unseen.answer("queue", evidence=["kv_use", "batch"], cause="few_slots")
    earned, _, feedback = criteria(unseen)["evidence"]
    assert (earned, "without having been asked" in feedback) == (0, True)
    stray = criteria_of(slots, ["kv_use", "batch", "gpu", "config"])["evidence"]
    assert 0 < stray[0] < EVIDENCE
    assert "points at no cause" in stray[2]
    assert "No more than context, or as last week: The configuration" in stray[2]
    assert "Batch occupancy" in stray[2].split(". ")[0]
    absent = criteria_of(slots, ["batch", "preemptions"])["evidence"]
    assert absent[0] == EVIDENCE, "a pool too small would preempt, and nothing is preempted"


@pytest.mark.usefixtures("stopped_clock")
def test_the_tempting_fix_is_answered_with_the_number_that_rules_it_out(slots: Incident) -> None:
    for name in CASE["evidence"]:
        slots.ask(name)
    slots.answer("queue", ranked=["double_fleet"], **CASE)
    slots.deploy(["double_fleet"])
    found = criteria(slots)
    assert found["ranking"][0] < 1
    assert found["minutes to mitigation"][0] == 0, "GPUs take a day"
    assert slots._hidden.cause.why_not in found["ranking"][2]
    assert found["SLO restored"][0] < found["SLO restored"][1] / 2


@pytest.mark.usefixtures("stopped_clock")
def test_what_stands_in_the_end_is_graded_and_what_was_taken_back_costs(slots: Incident) -> None:
    canary, everyone, searching = slots.fresh(), slots.fresh(), slots.fresh()
    for incident in (canary, everyone, searching):
        for name in CASE["evidence"]:
            incident.ask(name)
        incident.answer("queue", ranked=["more_slots"], **CASE)
    assert not canary.deploy(["larger_k"], canary=True).restored
    canary.roll_back()
    assert canary.is_undeployed
    canary.deploy(["more_slots"], canary=True)
    assert canary.is_undeployed
    canary.deploy(["more_slots"])
    everyone.deploy(["larger_k"])
    everyone.deploy(["more_slots"])
    for name in ("larger_k", "unbuffer", "gate_speculation"):
        searching.deploy([name], canary=True)
    searching.deploy(["more_slots"])
    first, second, third = (criteria(each)["SLO restored"][0] for each in (canary, everyone, searching))
    assert RESTORED > first == 0.9 * RESTORED > second == 0.6 * RESTORED > third == round(0.9**6 * RESTORED, 2)
    everyone.deploy(["larger_k"])
    assert everyone._standing[0].restored, "after the grade nothing counts"
    with pytest.raises(IncidentError, match="nothing to roll back"):
        everyone.roll_back()


@pytest.mark.usefixtures("stopped_clock")
def test_many_changes_at_once_count_less(slots: Incident) -> None:
    for name in CASE["evidence"]:
        slots.ask(name)
    slots.answer("queue", ranked=["more_slots"], **CASE)
    slots.deploy(["more_slots", "unbuffer", "cuda_graphs", "chunked_prefill"])
    earned, _, said = criteria(slots)["SLO restored"]
    assert earned == RESTORED / 2 and "4 changes" in said and "counts 50%" in said


def test_the_incident_goes_on_while_one_asks(slots: Incident) -> None:
    waiting = [slots.ask("queue_over_time").data["waiting, max"].max()]
    burned = [slots.burned]
    for name in ("collectives", "shared_prefix", "client_server", "step_times", "ingress", "regions", "chunks"):
        slots.ask(name)
    waiting.append(slots.fresh().ask("queue_over_time").data["waiting, max"].max())
    burned.append(slots.burned)
    assert waiting[0] == waiting[1], "who asks first sees the beginning"
    assert len(slots.window.run.records) > 1.3 * len(slots._hidden.scene.now.run.records)
    assert burned[1] > 1.5 * burned[0] and f"{burned[1]:.1%} of the month" in slots.status


def test_beginners_are_shown_less_and_may_ask_for_all(slots: Incident) -> None:
    easy = Incident(slots._hidden, slots._trials, slots.name, short=True)
    assert {"kv_use", "batch"} <= {question.id for question in easy.questions()}
    assert {"more_slots", "double_fleet"} <= {one.id for one in easy.interventions()}
    assert len(easy.questions()) < 20 < len(slots.questions())
    assert len(easy.interventions()) < 22 < len(slots.interventions())
    assert {"few_slots", "kv_pool"} <= {each.name for each in easy.suspects()} and len(easy.suspects()) < 12
    assert easy.ask("regions").text


def test_the_daily_incident_is_everyones_and_told_in_a_line(monkeypatch: pytest.MonkeyPatch, slots: Incident) -> None:
    seen = []
    monkeypatch.setattr(Incident, "generate", lambda seed, difficulty: seen.append((seed, difficulty)) or slots.fresh())
    days = [Incident.today(date(2026, 3, day)) for day in (1, 1, 2)]
    assert seen[0] == seen[1] != seen[2]
    with pytest.raises(IncidentError, match="before the grade"):
        days[0].share()
    days[0].mitigate(["revert"])
    days[0].answer("queue", ranked=["more_slots"])
    days[0].grade()
    line = days[0].share()
    assert line.startswith("minillm incident of 2026-03-01: users helped in 10 min, ") and "\n" not in line
    assert "slots" not in line


@pytest.mark.usefixtures("stopped_clock")
def test_the_reveal_tells_what_everything_would_have_done(slots: Incident) -> None:
    assert expert(slots).max_score == 100
    slots.suspect("the settings")
    slots.ask("batch")
    slots.answer("queue", ranked=["int8_kv"])
    assert slots.grade().notes == ()
    told = slots.reveal()
    assert told.cause == "few_slots"
    assert {"more_slots", "double_fleet", "int8_kv"} <= set(told.effects.index) < set(BY_ID)
    assert told.effects["value"].is_monotonic_decreasing
    assert [one.did for one in told.timeline][1:] == [
        "paged",
        "suspected: the settings",
        "asked: Batch occupancy over time, and slots",
        "committed: no cause (queue)",
    ]
    assert told.what_happened == told.timeline[0].truth in told._repr_html_()
    assert len(slots.reveal(changes=()).effects) == 0
    again = slots.fresh()
    again.answer("queue")
    assert "Practice" in again.grade().notes[0] and "practice" in again.share()
    assert told.effects.loc["more_slots", "restored"]
    assert not told.effects.loc["int8_kv", "restored"]
    assert told.title in str(told)
    assert told.title in told._repr_html_()


@pytest.mark.usefixtures("stopped_clock")
def test_of_a_change_that_was_tried_only_numbers_stay(slots: Incident) -> None:
    """The moments of every token of every change would fill the memory."""
    slots.answer("queue")
    slots.deploy(["larger_k"])
    gc.collect()
    played = sum(type(each) is FleetRun for each in gc.get_objects())
    slots.deploy(["int8_kv"])
    gc.collect()
    assert sum(type(each) is FleetRun for each in gc.get_objects()) == played


def test_every_decoding_step_is_in_a_class_of_batch_sizes(slots: Incident) -> None:
    rows = slots.ask("decode_steps").data
    decoding = [step for step in slots.window.steps if not step.prompt_tokens]
    assert rows[rows.index.str.startswith("now")]["steps"].sum() == len(decoding) > 0
    assert BATCHES[-1] >= MOST_SLOTS


def test_a_change_that_means_nothing_here_changes_nothing(slots: Incident) -> None:
    service = slots._hidden.case.now
    idle = {"unbuffer", "larger_k", "gate_speculation", "chunked_prefill", "static_first", "cuda_graphs", "kv_budget"}
    assert all(BY_ID[name].apply(service) == service for name in idle)
    assert BY_ID["more_slots"].apply(service) != service


def test_generation_refuses_what_there_is_not() -> None:
    with pytest.raises(IncidentError, match="difficulty"):
        Incident.generate(1, difficulty=4)
    with pytest.raises(IncidentError, match="no cause"):
        Incident.generate(1, cause="gremlins")
    with pytest.raises(IncidentError, match="no classic"):
        Incident.classic("the-other-one")


# ---------------------------------------------------------------- helping users first


@pytest.mark.usefixtures("stopped_clock")
def test_users_are_helped_before_there_is_a_diagnosis_and_soon_is_better(slots: Incident) -> None:
    early, late, asking, never = (slots.fresh() for _ in range(4))
    assert early.mitigate(["revert"]).restored and early.minutes == 10
    for name in ("collectives", "shared_prefix", "client_server", "step_times", "ingress"):
        asking.ask(name)
    asking.mitigate(["revert"])
    late.minutes = SLOW
    late.mitigate(["revert"])
    for incident in (early, asking, late, never):
        incident.answer("queue")
    first, second, third, fourth = (criteria(each)["minutes to mitigation"][0] for each in (early, asking, late, never))
    assert MITIGATED == first > second > third == fourth == 0
    assert "restored since minute 10" in early.status and "users helped in 10 min" in early.share()


@pytest.mark.usefixtures("stopped_clock")
def test_effort_drives_the_clock_and_the_slow_is_no_mitigation(slots: Incident) -> None:
    setting, weeks = slots.fresh(), slots.fresh()
    setting.deploy(["more_slots"])
    weeks.deploy(["int8_kv"])
    assert setting.minutes == 30 and setting._healed == 30
    assert weeks.minutes < 10 and weeks._healed is None
    weeks.mitigate(["revert"])
    weeks.answer("queue")
    setting.answer("queue")
    setting.deploy(["more_slots"])
    assert setting.minutes == 30, "it's there already"
    assert criteria(weeks)["minutes to mitigation"][0] == MITIGATED


@pytest.mark.usefixtures("stopped_clock")
def test_a_mitigation_gives_way_to_the_follow_up_for_nothing_and_vain_attempts_cost(slots: Incident) -> None:
    helped, tried = slots.fresh(), slots.fresh()
    tried.mitigate(["drafts_off"])
    for incident in (helped, tried):
        incident.mitigate(["revert"])
        for name in CASE["evidence"]:
            incident.ask(name)
        incident.answer("queue", None, ranked=["more_slots"], regime="steady", **CASE)
        incident.deploy(["more_slots"])
    assert criteria(helped)["SLO restored"][0] == criteria(tried)["SLO restored"][0] == RESTORED
    assert criteria(tried)["minutes to mitigation"][0] < 0.9 * criteria(helped)["minutes to mitigation"][0]


@pytest.mark.usefixtures("stopped_clock")
def test_ruling_the_look_alike_out_counts_and_ruling_the_cause_out_costs(slots: Incident) -> None:
    def earned(**ruled_out: str) -> float:
        incident = slots.fresh()
        incident.ask("kv_use")
        incident.answer("queue", cause="few_slots", ruled_out=ruled_out)
        return criteria(incident)["ruled out"][0]

    assert earned(kv_use="kv_pool") > 0 == earned(kv_use="few_slots") == earned(batch="kv_pool") == earned()
    with pytest.raises(IncidentError, match="no cause"):
        earned(kv_use="gremlins")


def test_a_cut_answer_is_a_lost_answer_and_a_refused_request_is_one(slots: Incident) -> None:
    service = replace(slots._hidden.case.now, answer_limit=8, released=None)
    assert play(service, 1).attainment == 0, "all of them are longer"
    everyone, half = slots._hidden.case.before, replace(slots._hidden.case.before, admitted=0.5)
    assert play(half, 1).attainment <= 0.5 < play(everyone, 1).attainment
    assert slots.deploy(["output_limit"]).table.loc["not answered in full", "after"] > 0.05


@pytest.mark.usefixtures("stopped_clock")
def test_a_broken_panel_has_no_data_or_last_weeks_and_the_page_warns(slots: Incident) -> None:
    scene = slots._hidden.scene
    assert "a panel can be missing" in str(slots.page) and len(scene.missing) == len(scene.stale) == 1
    cause = slots._hidden.cause
    assert not {*cause.convicting, cause.told_apart_by} & {*scene.missing, *scene.stale}
    (missing,), (stale,) = scene.missing, scene.stale
    assert "No data" in slots.ask(missing).text
    healthy = replace(scene, now=scene.before, missing=frozenset(), stale=frozenset())
    assert slots.ask(stale).text == QUESTIONS[stale].find_out(healthy).text
    assert Incident.generate(7, 1, "few_slots").page.warning == ""


def test_a_table_in_a_terminal_has_units_thousands_and_no_nan() -> None:
    rows = {
        "TTFT p95": {"now": 0.25, "limit": math.inf, "count": 12_345},
        "not answered in full": {"now": 0.00073, "limit": math.nan, "count": 7},
    }
    head, first, second = as_text(NamedRows(rows, "seconds, or share")).splitlines()
    assert head.split() == ["seconds,", "or", "share", "now", "limit", "count"]
    assert first.split()[2:] == ["250", "ms", "never", "12,345"]
    assert second.split()[4:] == ["0.1%", "–", "7"]


def test_refusing_long_prompts_meets_the_slo_and_does_harm(draw: Callable[[str, int], Incident]) -> None:
    player = draw("straggler", 7).fresh()
    effect = player.deploy(["prompt_limit"])
    assert effect.restored and effect.turned_away > 0.01 and "get no answer with it" in str(effect)
    [harm] = [each for each in expert(player.fresh()).criteria if each.name == "no harm"]
    assert harm.earned == 0 and "the users it refuses aren't served" in harm.feedback


def test_a_near_miss_is_not_rounded_to_the_target() -> None:
    def effect(after: float) -> Effect:
        return Effect((), 0.16, after, 0.95, 1.0, 1.0, NamedRows({}), ())

    told = [effect(after).after_told for after in (0.9462, 0.94999, 0.95, 0.93, 1.0)]
    assert told == ["94.6%", "94.9%", "95%", "93%", "100%"]


def test_full_clocks_rule_a_throttled_card_out(draw: Callable[[str, int], Incident]) -> None:
    """A clock at all of the rated one is a share like any other, and no one's fifth."""
    assert rules_out(draw("hung_rank", 1).truth, "cards", "throttled_card")


def test_the_configuration_names_the_link_that_the_cards_have(draw: Callable[[str, int], Incident]) -> None:
    assert ", linked by NVLink\n" in str(draw("hung_rank", 1).fresh().ask("config"))


def test_the_page_makes_no_breach_of_a_percentile_within_its_limit(slots: Incident) -> None:
    """Where most requests are lost, the others may be fast."""
    hidden = slots.truth
    easy = replace(hidden.case.now.slo, ttft=1e6, itl=1e6, tpot=1e6, e2e=1e6)
    now = replace(hidden.scene.now, service=replace(hidden.scene.now.service, slo=easy))
    alarm = page_of(replace(hidden, scene=replace(hidden.scene, now=now))).alarm
    assert alarm.endswith("of those answered is within the limits.") and "times" not in alarm


def test_a_seed_whose_cause_was_told_is_practice_at_all_difficulties() -> None:
    assert with_cause_of("incident 7, difficulty 1") == with_cause_of("incident 7, difficulty 3")
    names = ("incident 7, difficulty 1", "incident 17, difficulty 1", "incident 7, difficulty 1, burst")
    assert len({with_cause_of(name) for name in (*names, "incident of 2026-01-05", "classic: straggler")}) == 5


@pytest.mark.slow
def test_equal_hashes_rule_the_wrong_weights_out(draw: Callable[[str, int], Incident]) -> None:
    assert rules_out(draw("throttled_card", 7).truth, "versions", "wrong_weights")
    assert not rules_out(draw("throttled_card", 7).truth, "versions", "hot_replica")

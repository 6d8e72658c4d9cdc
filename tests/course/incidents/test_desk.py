"""The on-call desk, driven without a browser."""

from collections.abc import Callable

import pytest

from course.incidents import Incident
from course.incidents.desk import IncidentDesk
from course.incidents.marking import EVIDENCE


@pytest.fixture
def desk(draw: Callable[[str, int], Incident], stopped_clock: None) -> IncidentDesk:
    return IncidentDesk(draw("few_slots", 1).fresh())


def test_a_question_goes_on_the_board_and_takes_its_minutes(desk: IncidentDesk) -> None:
    desk.ask_buttons["kv_use"].click()
    assert "KV use over time" in desk.board.value
    assert desk.incident.minutes == 1
    assert "1 minute<" in desk.clock.value and "error budget" in desk.clock.value
    assert [name for _, name in desk.evidence.options] == ["kv_use"]
    desk.ask("kv_use")
    assert desk.board.value.count("<svg") == 1


def test_what_is_marked_stays_marked_when_another_question_is_asked(desk: IncidentDesk) -> None:
    desk.ask_buttons["batch"].click()
    desk.evidence.value = ("batch",)
    desk.ask_buttons["kv_use"].click()
    assert desk.evidence.value == ("batch",)
    desk.evidence.value = ("batch", "kv_use")
    desk.cause.value, desk.phase.value = "few_slots", "queue"
    desk.commit.click()
    assert {c.name: c.earned for c in desk.incident.grade().criteria}["evidence"] == EVIDENCE


def test_a_blank_commit_is_refused_and_a_committed_form_is_closed(desk: IncidentDesk) -> None:
    desk.commit.click()
    assert "blank" in desk.verdict.value and not desk.commit.disabled
    desk.phase.value = "queue"
    desk.commit.click()
    assert "Noted" in desk.verdict.value
    assert all(part.disabled for part in (desk.commit, desk.phase, desk.regime, desk.evidence, *desk.ranked))


def test_the_menus_come_after_the_hypothesis(desk: IncidentDesk) -> None:
    desk.suspect_button.click()
    assert "write down what you suspect" in desk.verdict.value and desk.menus.layout.display == "none"
    desk.hypothesis.value = "slots, or memory"
    desk.suspect_button.click()
    assert desk.menus.layout.display is None and desk.incident.hypothesis == "slots, or memory"


def test_a_canary_can_be_rolled_back(desk: IncidentDesk) -> None:
    desk.phase.value = "queue"
    desk.commit.click()
    desk.roll_back_button.click()
    assert "nothing to roll back" in desk.verdict.value
    desk.chosen.value = ("larger_k",)
    desk.canary_button.click()
    assert "the SLO is missed" in desk.verdict.value and desk.incident.is_undeployed
    desk.roll_back_button.click()
    assert "Rolled back" in desk.verdict.value


def test_deploying_nothing_is_no_deployment(desk: IncidentDesk) -> None:
    desk.ranked[0].value = "more_slots"
    desk.commit.click()
    desk.deploy_button.click()
    assert "at least one change" in desk.verdict.value and desk.incident.is_undeployed
    desk.chosen.value = ("more_slots",)
    desk.deploy_button.click()
    assert "the SLO is met" in desk.verdict.value and not desk.incident.is_undeployed
    assert (
        "<animate" in desk.verdict.value
        and "not answered in full" in desk.verdict.value
        and "0.0%" in desk.verdict.value
    )


def test_a_grade_without_a_deployment_is_given_to_those_who_mean_it(
    desk: IncidentDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.incident, "reveal", lambda: desk.incident.page)  # every change would be played
    desk.phase.value = "queue"
    desk.commit.click()
    desk.grade_button.click()
    desk.wait()
    assert "press again" in desk.verdict.value and desk.incident._result is None
    desk.grade_button.click()
    desk.wait()
    assert "Nothing is deployed" in desk.verdict.value


def test_from_page_to_truth(desk: IncidentDesk) -> None:
    desk.help_buttons["revert"].click()
    assert "the SLO is met" in desk.verdict.value and "restored since minute 10" in desk.clock.value
    for name in ("kv_use", "batch"):
        desk.ask_buttons[name].click()
    desk.phase.value, desk.regime.value, desk.cause.value = "queue", "steady", "few_slots"
    desk.other.value, desk.ruled_out_by.value = "kv_pool", "kv_use"
    desk.evidence.value = ("kv_use", "batch")
    desk.ranked[0].value = "more_slots"
    desk.commit.click()
    assert desk.commit.disabled
    desk.chosen.value = ("more_slots",)
    desk.deploy_button.click()
    assert "the SLO is met" in desk.verdict.value
    assert desk.incident.grade().score >= 95
    assert "PAGE" in desk.static_html()

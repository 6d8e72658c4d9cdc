"""The incident console's Python half: states and actions, played without a browser; and the desk that ferries them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from course.incidents import Incident, IncidentError
from course.incidents.console import CLOCK_AXIS, ConsoleSession
from course.incidents.desk import IncidentDesk
from course.incidents.evidence import NO_DATA
from course.incidents.generate import Hidden
from course.incidents.marking import EVIDENCE

CURE = ["more_slots"]
DIAGNOSIS = {
    "do": "commit",
    "cause": "few_slots",
    "phase": "queue",
    "regime": "steady",
    "evidence": ["kv_use", "batch"],
    "other": "kv_pool",
    "by": "kv_use",
    "ranked": CURE,
}


@pytest.fixture
def session(draw: Callable[[str, int], Incident], stopped_clock: None) -> ConsoleSession:
    return ConsoleSession(draw("few_slots", 1).fresh())


def played(session: ConsoleSession, *actions: dict[str, Any]) -> dict[str, Any]:
    """The last state, as a browser gets it."""
    for action in actions:
        state = session.act(action)
    return json.loads(json.dumps(state, allow_nan=False))


def asked(*names: str) -> list[dict[str, str]]:
    return [{"do": "ask", "question": name} for name in names]


def test_an_incident_is_played_by_actions_from_its_page_to_its_truth(session: ConsoleSession) -> None:
    start = played(session, {"do": "look"})
    assert start["minute"] == 0 and start["debrief"] is None and start["curve"][0][0] > start["onset"]
    assert max(minute for minute, _ in start["curve"]) < 0 < start["failing"]
    helped = played(session, {"do": "deploy", "changes": ["revert"]})
    assert helped["relief"]["minute"] == helped["minute"] == 10 and helped["standing"] == ["revert"]
    seen = played(session, *asked("kv_use", "batch"), *asked("batch"))
    assert seen["minute"] == 12 and [each["minute"] for each in seen["evidence"]] == [11, 12]
    told = played(session, {"do": "suspect", "words": "slots"}, DIAGNOSIS)
    assert told["diagnosis"]["minute"] == 12 and told["undeployed"] is False  # the mitigation stands
    tried = played(session, {"do": "deploy", "changes": CURE, "canary": True})
    assert tried["undeployed"] and tried["deployed"][-1]["canary"]
    over = played(session, {"do": "deploy", "changes": CURE}, {"do": "grade"})
    debrief = over["debrief"]
    assert debrief["score"] >= 95 and debrief["score"] == session.incident.grade().score
    assert [each["minute"] for each in debrief["milestones"]] == [10, 12, over["deployed"][-1]["minute"]]
    assert [each["kind"] for each in over["events"][1:4]] == ["deployed to all", "asked", "asked"]
    assert debrief["changes"] == [], "nobody has asked for that yet"


def test_what_is_shown_has_names_and_no_ids(session: ConsoleSession) -> None:
    state = played(session, *asked("kv_use"), DIAGNOSIS, {"do": "grade", "sure": True})
    debrief = state["debrief"]
    shown = json.dumps([debrief["cause"], debrief["truth"], state["diagnosis"]["says"], state["places"][-1]["name"]])
    assert not [each for each in ("few_slots", "kv_pool", "more_slots", "outside_the_engine") if each in shown]


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (3, "an action is an object"),
        ({"do": "aks"}, "did you mean 'ask'"),
        ({"do": "ask"}, "no question ''"),
        ({"do": "ask", "question": 3}, "is a text"),
        ({"do": "ask", "question": "kv_us"}, "did you mean 'kv_use'"),
        ({"do": "ask", "qestion": "kv_use"}, "did you mean 'question'"),
        ({"do": "deploy", "changes": "revert"}, "is a list of texts"),
        ({"do": "deploy", "changes": []}, "at least one change"),
        ({"do": "deploy", "changes": ["revert"], "canary": 1}, "is true or false"),
        ({"do": "roll_back"}, "nothing to roll back"),
        ({"do": "suspect", "words": "  "}, "write down what you suspect"),
        ({"do": "commit"}, "this one is blank"),
        ({"do": "commit", "cause": "gremlins"}, "no cause 'gremlins'"),
        ({"do": "grade"}, "answer first"),
        ({"do": "compare"}, "after the grade"),
    ],
)
def test_a_bad_action_is_refused_with_its_reason_and_changes_nothing(
    session: ConsoleSession, action: object, why: str
) -> None:
    before = session.state()
    with pytest.raises(IncidentError, match=why):
        session.act(action)
    assert session.state() == before


def test_a_grade_with_nothing_deployed_must_be_meant_and_ends_it(session: ConsoleSession) -> None:
    played(session, {"do": "commit", "phase": "queue"})
    with pytest.raises(IncidentError, match="nothing is deployed"):
        session.act({"do": "grade"})
    state = played(session, {"do": "grade", "sure": True})
    assert [each["minute"] for each in state["debrief"]["milestones"]] == [None, 0, None]
    for late in ({"do": "deploy", "changes": CURE}, DIAGNOSIS):
        with pytest.raises(IncidentError, match="has its grade"):
            session.act(late)
    looked = played(session, *asked("kv_use"))  # what was missed can be looked at
    assert looked["debrief"] == state["debrief"]


def test_what_rolls_back_takes_its_help_with_it(session: ConsoleSession) -> None:
    state = played(session, {"do": "deploy", "changes": ["revert"]}, {"do": "roll_back"})
    assert state["relief"] is None and state["standing"] == [] and state["minute"] == 13


def test_time_is_told_in_minutes_of_the_incident_and_ends_with_the_arrivals(session: ConsoleSession) -> None:
    state = played(session, *asked("queue_over_time", "step_times"))
    over_time, cloud = (each["panel"] for each in state["evidence"])
    moments = [x for line in over_time["lines"] for x, _ in line["points"]]
    assert over_time["x"] == CLOCK_AXIS and min(moments) == state["onset"] and max(moments) <= state["minute"]
    assert cloud["x"] != CLOCK_AXIS


def test_a_missing_panel_says_so_and_a_stale_one_only_when_it_is_over(
    draw: Callable[[str, int], Incident], stopped_clock: None
) -> None:
    known = draw("few_slots", 1)
    scene = replace(known.truth.scene, missing=frozenset({"batch"}), stale=frozenset({"kv_use"}))
    hidden: Hidden = replace(known.truth, scene=scene)
    session = ConsoleSession(Incident(hidden, known._trials, "broken panels", short=True))
    state = played(session, *asked("batch", "kv_use"))
    missing, stale = state["evidence"]
    assert missing["missing"] and missing["text"] == NO_DATA and not stale["missing"]
    assert "Monitoring was moved" in state["page"]["warning"] and stale["question"] not in json.dumps(
        state["events"][:2]
    )
    debrief = played(session, {"do": "commit", "phase": "queue"}, {"do": "grade", "sure": True})["debrief"]
    assert debrief["missing"] == [missing["question"]] and debrief["stale"] == [stale["question"]]


def test_what_was_asked_in_code_is_on_the_console_as_well(draw: Callable[[str, int], Incident]) -> None:
    incident = draw("few_slots", 1).fresh()
    incident.ask("kv_use")
    assert [each["id"] for each in ConsoleSession(incident).state()["evidence"]] == ["kv_use"]


def test_the_desk_ferries_actions_and_refusals(
    draw: Callable[[str, int], Incident], stopped_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded: list[bool] = []
    desk = IncidentDesk(draw("few_slots", 1).fresh(), lambda: graded.append(True))
    sent: list[dict[str, str]] = []
    monkeypatch.setattr(desk.widget, "send", sent.append)
    actions = [*asked("kv_use", "batch"), DIAGNOSIS, {"do": "grade"}, {"do": "grade", "sure": True}]
    for number, action in enumerate(actions):
        desk.widget._handle_custom_msg({"id": number, "action": action}, [])
    assert [bool(each["refused"]) for each in sent] == [False, False, False, True, False] and graded == [True]
    earned = {each["name"]: each["earned"] for each in desk.widget.state["debrief"]["criteria"]}
    assert earned["evidence"] == EVIDENCE and "PAGE" in desk.static_html()

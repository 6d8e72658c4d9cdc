"""`minillm incident`: step by step from a script, and by hand."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from course.incidents import Incident, cli
from course.lab.left import forget_left

Run = Callable[..., tuple[int, str, str]]
SLOTS = ("--seed", "1", "--cause", "few_slots")
ANSWER = {
    "cause": "few_slots",
    "dominant_phase": "queue",
    "evidence": ["kv_use", "batch"],
    "ruled_out": {"kv_use": "kv_pool"},
    "ranked": ["more_slots"],
}
GENERATED = functools.cache(Incident.generate)


@pytest.fixture(autouse=True)
def _generated_once(monkeypatch: pytest.MonkeyPatch, stopped_clock: None, home: Path) -> None:
    """And the reveal tries one change instead of a dozen. What's left to go on with is nobody's."""
    monkeypatch.setattr(Incident, "generate", lambda *of: GENERATED(*of).fresh())
    monkeypatch.setattr(Incident, "reveal", functools.partialmethod(Incident.reveal, changes=("more_slots",)))


def test_json_step_by_step(run: Run) -> None:
    status, out, _ = run("incident", *SLOTS, "--json")
    page = json.loads(out)
    assert status == 0
    assert page["page"]["alarm"]
    assert {"grade", "reveal", "deployed"}.isdisjoint(page)
    assert len(page["questions"]) > 12 > 10 < len(page["interventions"])

    asked = ("--mitigate", "revert", "--ask", "kv_use", "--ask", "batch")
    played = ("--answer", json.dumps(ANSWER), "--canary", "more_slots", "--deploy", "more_slots", "--json")
    status, out, _ = run("incident", *SLOTS, *asked, *played)
    report = json.loads(out)
    assert status == 0
    assert report["page"] == page["page"]
    assert [found["id"] for found in report["evidence"]] == ["kv_use", "batch"]
    assert report["deployed"]["restored"] is True is report["canary"]["restored"] is report["mitigated"]["restored"]
    assert report["share"].startswith("minillm incident 1") and report["reveal"]["timeline"]
    assert report["grade"]["score"] >= 85
    assert report["reveal"]["cause"] == "few_slots"


def test_mistakes_are_told(run: Run) -> None:
    for words, message in (
        (("--ask", "kv_usee"), "did you mean 'kv_use'"),
        (("--answer", "queue"), "JSON object"),
        (("--answer", '{"phase": "queue"}'), "not phase"),
        (("--answer", '{"evidence": "batch"}'), "is a list"),
        (("--answer", '{"ruled_out": "kv_pool"}'), "is an object"),
        (("--today",), "--today and a seed each say which incident"),
        (("--mitigate", "reverse"), "did you mean 'revert'"),
    ):
        status, out, err = run("incident", *SLOTS, *words, "--json")
        assert (status, out) == (2, "") and message in err, words


def test_days_that_are_none(run: Run) -> None:
    for day, message in (("soon", "a day such as"), ("2999-01-01", "yet to come")):
        status, out, err = run("incident", "--date", day, "--json")
        assert (status, out) == (2, "") and message in err, day


def test_the_archive_is_listed(run: Run) -> None:
    status, out, _ = run("incident", "--archive")
    assert status == 0 and "streak: 0" in out and "not played" in out
    report = json.loads(run("incident", "--archive", "--json")[1])
    assert report["streak"] == 0 and len(report["days"]) == out.count("not played")


def test_what_was_left_goes_on_and_a_wrong_question_takes_no_minutes(run: Run) -> None:
    first = ["ask kv_use gremlins", "ask", "kv_use", "mitigate revert", "suspect slots"]
    _, out, _ = run("incident", *SLOTS, stdin="\n".join([*first, "quit"]))
    assert "[11 min," in out and "[12 min," not in out, "a question that isn't there took the other one's minute"
    _, out, _ = run("incident", "--resume", stdin="status\nquit\n")
    assert "noted" in out and "restored since minute 11" in out
    answer = ["answer", "few_slots", "1", "", "1", "1", "", "more_slots"]
    _, out, _ = run("incident", "--resume", stdin="\n".join([*answer, "deploy more_slots", "grade"]))
    assert "incident: " in out and "deployed to all" in out
    status, _, err = run("incident", "--resume")
    assert status == 2 and "nothing to go on with" in err


def test_going_on_takes_no_other_option_and_no_other_menus(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("incident", *SLOTS, stdin="ask 1\nquit\n")
    for option in (("--seed", "9"), ("--today",), ("--ask", "phases"), ("--json",)):
        status, _, err = run("incident", "--resume", *option)
        assert status == 2 and "takes no other option" in err, option
    monkeypatch.setattr(cli, "offers_of", lambda _: "of a later version")
    status, _, err = run("incident", "--resume")
    assert status == 2 and "has changed since" in err


def test_a_grade_forgets_its_own_incident_only(run: Run) -> None:
    run("incident", *SLOTS, stdin="ask batch\nquit\n")
    kept = cli.LEFT.read()
    forget_left(cli.LEFT, cli.LeftIncident(seed=7))
    assert cli.LEFT.read() == kept
    _, out, _ = run("incident", *SLOTS, stdin="quit\n")
    assert "You left another one" in out and cli.LEFT.read() == kept
    forget_left(cli.LEFT, kept)
    assert not cli.LEFT.read().lines


def test_leaving_before_the_grade_says_what_is_kept(run: Run) -> None:
    for words in ("ask batch\nquit\n", "ask batch\n"):  # the second ends as Ctrl-D does
        status, out, _ = run("incident", *SLOTS, stdin=words)
        assert status == 0 and "--resume` goes on" in out


def test_a_menu_can_be_left_and_a_second_answer_is_refused_before_its_menus(run: Run) -> None:
    words = ["answer", "few_slots", "back", "answer", "few_slots", *[""] * 5, "answer"]
    status, out, _ = run("incident", *SLOTS, stdin="\n".join(words))
    assert status == 0 and "nothing done" in out and "noted: " in out
    assert out.count("what is the cause?") == 2 and "this incident has its diagnosis" in out


def test_what_stands_stays_until_slow_work_is_done(run: Run) -> None:
    _, out, _ = run("incident", *SLOTS, stdin="mitigate revert\ndeploy double_fleet\ndeploy more_slots\nquit\n")
    assert "It stays until that is done: Roll back to last night's release" in out
    assert "Taken back for it: Double the replicas." in out


def test_playing_by_hand_from_menus(run: Run) -> None:
    words = [
        "mitigate",
        "1",
        "ask",
        "99",
        "kv_use",
        "ask batch",
        "ask 2",
        "ask gremlins",
        "dance",
        "suspect",
        "suspect too few slots",
        "status",
        "answer",
        *("gpu", "few_slots", "1", "", "1", "1, 2", "kv_pool", "9", "1", "more_slots"),
        "deploy gremlins",
        "deploy more_slots",
        "grade",
    ]
    status, out, _ = run("incident", *SLOTS, stdin="\n".join(words))
    assert status == 0
    told = (
        "PAGE",
        "Roll back to last night's release",
        "restored since minute 10",
        "not in the menu: 99",
        "no question 'gremlins'",
        "Where answered requests spent their time",
        "no command 'dance'",
        "in your own words",
        "not in the menu: gpu",
        "which answers prove it?",
        "of the month's error budget burned",
        "no intervention 'gremlins'",
        "Taken back for it: Roll back to last night",
        "incident: ",
        "max_num_seqs too low",
    )
    assert [words for words in told if words not in out] == []
    assert float(out.partition("incident: ")[2].partition(" of 100")[0]) > 90

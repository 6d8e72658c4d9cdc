"""`minillm incident`: step by step from a script, and by hand."""

import functools
import json
from collections.abc import Callable

import pytest

from course.incidents import Incident

Run = Callable[..., tuple[int, str, str]]
SLOTS = ("--seed", "1", "--cause", "few_slots")
ANSWER = {"dominant_phase": "queue", "evidence": ["kv_use", "batch"], "ranked": ["more_slots"]}
GENERATED = functools.cache(Incident.generate)


@pytest.fixture(autouse=True)
def _generated_once(monkeypatch: pytest.MonkeyPatch, stopped_clock: None) -> None:
    """And the reveal tries one change instead of a dozen."""
    monkeypatch.setattr(Incident, "generate", lambda *of: GENERATED(*of).fresh())
    monkeypatch.setattr(Incident, "reveal", functools.partialmethod(Incident.reveal, changes=("more_slots",)))


def test_json_step_by_step(run: Run) -> None:
    status, out, _ = run("incident", *SLOTS, "--json")
    page = json.loads(out)
    assert status == 0
    assert page["page"]["alarm"]
    assert {"grade", "reveal", "deployed"}.isdisjoint(page)
    assert len(page["questions"]) > 12 > 10 < len(page["interventions"])

    asked = ("--ask", "kv_use", "--ask", "batch")
    played = ("--answer", json.dumps(ANSWER), "--canary", "more_slots", "--deploy", "more_slots", "--json")
    status, out, _ = run("incident", *SLOTS, *asked, *played)
    report = json.loads(out)
    assert status == 0
    assert report["page"] == page["page"]
    assert [found["id"] for found in report["evidence"]] == ["kv_use", "batch"]
    assert report["deployed"]["restored"] is True is report["canary"]["restored"]
    assert report["share"].startswith("minillm incident 1") and report["reveal"]["timeline"]
    assert report["grade"]["score"] >= 85
    assert report["reveal"]["cause"] == "few_slots"


def test_mistakes_are_told(run: Run) -> None:
    for words, message in (
        (("--ask", "kv_usee"), "did you mean 'kv_use'"),
        (("--answer", "queue"), "JSON object"),
        (("--answer", '{"phase": "queue"}'), "not phase"),
        (("--answer", '{"evidence": "batch"}'), "is a list"),
        (("--deploy", "more_slots"), "diagnose first"),
    ):
        status, out, err = run("incident", *SLOTS, *words, "--json")
        assert (status, out) == (2, "") and message in err, words


def test_playing_by_hand(run: Run) -> None:
    words = [
        "questions",
        "fixes",
        "suspect too few slots",
        "fixes queue",
        "ask kv_use batch",
        "ask",
        "ask gremlins",
        "deploy more_slots",
        "dance",
        "rollback",
        "status",
        "answer dominant_phase=gpu",
        "answer dominant_phase=queue evidence=kv_use,batch ranked=more_slots",
        "grade",
        "deploy",
        "deploy gremlins",
        "deploy more_slots",
        "grade",
    ]
    status, out, _ = run("incident", *SLOTS, stdin="\n".join(words))
    assert status == 0
    told = (
        "PAGE",
        "at least one question",
        "no question 'gremlins'",
        "diagnose first",
        "no command 'dance'",
        "no phase 'gpu': choose one of queue",
        "in your own words",
        "Eight times the slots",
        "nothing to roll back",
        "of the day's error budget burned",
        "type grade again",
        "no intervention 'gremlins'",
        "at least one change",
        "incident: ",
        "max_num_seqs too low",
    )
    assert all(words in out for words in told)

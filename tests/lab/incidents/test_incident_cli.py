"""`minillm incident`: step by step from a script, and by hand."""

import io
import json
import sys

import pytest

from minillm.__main__ import main

SLOTS = ("--seed", "1", "--cause", "few_seats")
ANSWER = {"dominant_phase": "queue", "evidence": ["kv_use", "batch"], "ranked": ["more_seats"]}


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, stdin: str = "") -> tuple:
    """(exit status, stdout, stderr) of `minillm incident ...`."""
    monkeypatch.setattr(sys, "argv", ["minillm", "incident", *words])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0, *capsys.readouterr()


def test_json_step_by_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(monkeypatch, capsys, *SLOTS, "--json")
    page = json.loads(out)
    assert status == 0
    assert page["page"]["alarm"]
    assert {"grade", "reveal", "deployed"}.isdisjoint(page)
    assert len(page["questions"]) > 20 < len(page["interventions"])

    asked = ("--ask", "kv_use", "--ask", "batch")
    played = ("--answer", json.dumps(ANSWER), "--deploy", "more_seats", "--json")
    status, out, _ = call(monkeypatch, capsys, *SLOTS, *asked, *played)
    report = json.loads(out)
    assert status == 0
    assert report["page"] == page["page"]
    assert [found["id"] for found in report["evidence"]] == ["kv_use", "batch"]
    assert report["deployed"]["restored"] is True
    assert report["grade"]["score"] >= 85
    assert report["reveal"]["cause"] == "few_seats"


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("--ask", "kv_usee"), "did you mean 'kv_use'"),
        (("--answer", "queue"), "JSON object"),
        (("--answer", '{"phase": "queue"}'), "not phase"),
        (("--answer", '{"evidence": "batch"}'), "is a list"),
        (("--deploy", "more_seats"), "diagnose first"),
    ):
        status, out, err = call(monkeypatch, capsys, *SLOTS, *words, "--json")
        assert (status, out) == (2, "") and message in err, words


@pytest.mark.parametrize("ends", ["quit", pytest.param("grade", marks=pytest.mark.slow)])
def test_playing_by_hand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str) -> None:
    words = [
        "questions", "ask kv_use batch", "ask", "ask gremlins", "deploy more_seats", "dance",
        "answer dominant_phase=queue evidence=kv_use,batch ranked=more_seats", "deploy", "deploy more_seats", ends,
    ]  # fmt: skip
    status, out, _ = call(monkeypatch, capsys, *SLOTS, stdin="\n".join(words))
    assert status == 0
    told = (
        "PAGE",
        "at least one question",
        "no question 'gremlins'",
        "diagnose first",
        "no command 'dance'",
        "at least one change",
    )
    assert all(words in out for words in told)
    for told in ("incident: ", "max_num_seqs too low"):
        assert (told in out) == (ends == "grade")

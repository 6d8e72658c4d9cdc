"""Sitting a drill stage by stage, keeping it, and the same in a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from drills.test_graders import ideal
from typer.testing import CliRunner

from course.drills import attempts, lesson, report
from course.drills.cli import app
from course.drills.console import DrillError, DrillSession
from course.drills.desk import DrillDesk, MockInterview, solution
from course.drills.drill import LEVELS, Commit
from course.drills.interviewer import PUSHBACKS, QUESTIONS
from course.drills.library import ALL, FLAGSHIP, find_drill
from course.drills.mock import MINUTES, minutes_of, plan
from course.drills.recorder import recorder_html
from course.drills.sitting import Sitting
from course.drills.talk import talk_of
from course.lessons.lesson_13.check import checks
from minillm.core.errors import MinillmError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    return tmp_path


class MadeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def go_on(desk: DrillDesk, **filled: str) -> None:
    desk.act({"do": "go_on", "filled": {key.replace("_", " "): value for key, value in filled.items()}})


def stage_of(desk: DrillDesk) -> dict[str, Any]:
    """The step that is open, as a browser gets it."""
    return json.loads(json.dumps(desk.widget.state, allow_nan=False))["stage"]


def test_a_desk_goes_through_its_steps_in_order() -> None:
    desk = DrillDesk(FLAGSHIP, now=(clock := MadeClock()), judge_url="http://127.0.0.1:9/v1")  # nothing listens there
    drawn = desk.sitting.drill
    good = ideal(drawn, "strong")
    assert desk.widget.state["prompt"] == "" and desk.widget.state["asking"]["options"] == []
    assert drawn.drill.title not in desk.static_html() + json.dumps(desk.widget.state), "a title is half of the answer"
    desk.act({"do": "start"})
    assert "A100" in desk.widget.state["prompt"] and desk.widget.state["clock"]["state"] == "running"
    keys = [each["id"] for each in desk.widget.state["asking"]["options"]]
    for key in keys[:QUESTIONS]:
        desk.act({"do": "ask", "fact": key})
    with pytest.raises(DrillError, match="5 questions"):
        desk.act({"do": "ask", "fact": keys[QUESTIONS]})
    told = desk.widget.state["asking"]["told"]
    assert desk.sitting.asked == tuple(keys[:QUESTIONS]) and told[0]["says"] == talk_of(drawn).fact(keys[0]).says
    clock.now += 742
    desk.act({"do": "hand_in", "text": good.text})
    assert desk.widget.state["clock"] == {"total": 720, "used": 742, "state": "stopped"}
    go_on(desk, dominant="queue", number="plenty")
    assert "one number" in stage_of(desk)["text"]
    go_on(
        desk, dominant="queue", number="5.4", unit="times", fix_1="quantization", fix_2="admission", fix_3="admission"
    )
    assert desk.sitting.commit == Commit(
        dominant="queue", number="5.4", unit="times", fixes=("quantization", "admission")
    )
    asked = []
    while (stage := stage_of(desk))["part"] == "Pushback":
        asked.append(stage["title"])
        go_on(desk, reply="Because I said so.")
    assert len(asked) == 2 * PUSHBACKS and all(
        ("asks back" in title) is (place % 2 == 1) for place, title in enumerate(asked)
    )
    assert len(desk.sitting.replies) == 2 * PUSHBACKS and all(each.then for each in desk.sitting.turns)
    wrong = {f"statement_{n}": f"{'disagree' if c.is_true else 'agree'} 95" for n, c in enumerate(desk.sitting.put, 1)}
    go_on(desk, **wrong)
    for label in "AB":
        assert "Hand in and grade" in str(solution(desk)) and f"answer {label}" in stage_of(desk)["title"]
        go_on(desk, **good.samples[label])
    own = {key: level for key, (level, _) in good.own_written.items()}
    quotes = {f"{key} quote": quote for key, (_, quote) in good.own_written.items()}
    go_on(desk, **own, **quotes, **{"fact 1": good.own_written["diagnosis"][1]})
    assert drawn.drill.title not in json.dumps(desk.widget.state), "not over yet"
    assert stage_of(desk)["part"] == "Disputes" and desk.widget.state["steps"][desk.widget.state["at"]] == "Disputes"
    go_on(desk, **{"1": "It holds in a burst.", "quantization": "It's int8."})
    assert "Write this paragraph again" in stage_of(desk)["title"]
    go_on(desk, again="So it's the queue.")
    (kept,) = attempts.FILE.read().done
    assert kept.seconds == pytest.approx(742) and kept.weight == 1 and kept.samples == good.samples
    assert kept.self_score == {key: level for key, (level, _) in good.own_written.items()}
    assert kept.statements["1"].endswith("95%") and kept.disputed.keys() == {"1", "quantization"}
    assert kept.rewritten == "So it's the queue." and kept.level == "" and "statements 0 of 8" in kept.headline
    verdict = json.dumps(desk.widget.state["verdict"])
    assert "on the five samples it gave no grade" in verdict and '"judge model:' not in verdict
    assert "A staff answer" in verdict and drawn.drill.title in verdict
    assert desk.widget.state["at"] == len(desk.widget.state["steps"]) - 1


@pytest.mark.parametrize(
    ("before", "action", "why"),
    [
        ((), "start", "an action is an object"),
        ((), {"do": "begin"}, "no action 'begin'"),
        ((), {"do": "start", "now": "yes"}, "no field 'now'"),
        ((), {"do": "hand_in", "text": 3}, "text of hand_in is a text"),
        ((), {"do": "hand_in", "text": "The queue."}, "before the clock runs"),
        ((), {"do": "ask", "fact": "moon"}, "before the clock runs"),
        ((), {"do": "go_on"}, "nothing to go on from"),
        (("start",), {"do": "ask", "fact": "moon"}, "no question 'moon'"),
        (("start",), {"do": "hand_in", "text": " "}, "Nothing is written"),
        (("start", "hand_in"), {"do": "hand_in", "text": "More."}, "is handed in"),
        (("start", "hand_in"), {"do": "go_on"}, "commit to something"),
        (("start", "hand_in"), {"do": "go_on", "filled": {"dominant": 3}}, "texts by field"),
        (("start", "hand_in"), {"do": "go_on", "filled": {"dominant": "moon"}}, "can't be 'moon'"),
        (("start", "hand_in"), {"do": "go_on", "filled": {"moon": "queue"}}, "called 'moon'"),
    ],
)
def test_a_bad_action_is_refused_with_its_reason_and_changes_nothing(
    before: tuple[str, ...], action: object, why: str
) -> None:
    session = DrillSession(find_drill(FLAGSHIP).drawn(), now=MadeClock())
    for do in before:
        session.act({"do": do, "text": "The queue."} if do == "hand_in" else {"do": do})
    state = session.state()
    with pytest.raises(DrillError, match=f"(?i){why}"):
        session.act(action)
    assert session.state() == state


def test_a_mock_interview_fills_its_time_and_ends_with_a_verdict() -> None:
    plans = [plan(seed) for seed in range(12)]
    assert all(39 <= minutes_of(each) <= MINUTES for each in plans)
    assert len({each[0].id for each in plans}) > 3, "the opening varies"
    mock = MockInterview(seed=2)
    mock.finish()
    assert "No round is over" in mock.told.value and len(mock.desks) == len(plan(2))
    assert mock.desks[0].widget.start_class and not mock.desks[1].widget.start_class, "the first one starts the clock"
    short = mock.desks[1]
    short.act({"do": "start"})
    short.act({"do": "hand_in", "text": "Replicas shorten each decode step."})
    go_on(short, dominant="queue")
    while not short.is_over:
        assert stage_of(short)["part"] in ("Pushback", "Statements", "Disputes"), "the learner doesn't grade"
        go_on(short)
    mock.finish()
    assert "No hire yet" in mock.told.value and short.sitting.drill.drill.title in mock.told.value


def run(*arguments: str, stdin: str | bytes = "") -> dict:
    result = CliRunner().invoke(app, [*arguments, "--json"], input=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_terminal_lists_shows_and_grades(home: Path) -> None:
    rows = run("list")["drills"]
    assert [row["id"] for row in rows] == [drill.id for drill in ALL] and not any("tags" in row for row in rows)
    shown = run("show", FLAGSHIP, "--seed", "3")
    drawn = find_drill(FLAGSHIP).drawn()
    assert shown["prompt"] == find_drill(FLAGSHIP).drawn(3).prompt and "model_answers" not in shown
    assert run("show", f"{shown['number']}", "--seed", "3") == shown and find_drill(FLAGSHIP).title not in str(shown)
    good, put = ideal(drawn, "strong"), talk_of(drawn).put()
    assert run("statements", FLAGSHIP)["statements"] == [each.says for each in put]
    answer, sheet = home / "answer.md", home / "sheet.json"
    answer.write_text(good.text)
    sheet.write_text(json.dumps({"samples": good.samples, "own": good.own_written, "ticks": {"1": "not there at all"}}))
    options = ["--dominant", "queue", "--second", "kv_room", "--number", "5.4", "--unit", "times"]
    options += [part for each in good.commit.fixes for part in ("--fix", each)]
    right = [f"{n}={'agree' if claim.is_true else 'disagree'} 80" for n, claim in enumerate(put, 1)]
    options += [part for each in right for part in ("--statement", each)]
    options += ["--sheet", str(sheet), "--ask", next(iter(shown["questions"]))]
    graded = run("grade", FLAGSHIP, "--answer", str(answer), *options)
    assert (
        graded["headline"].startswith("commitments 6.9 of 9, statements 8 of 8")
        and graded["calibration"]["weight"] == 1
    )
    assert graded["verdict"]["level"] and len(graded["asked"]) == 1 and graded["must_say"][0]["quote"] == ""
    assert set(graded["model_answers"]) == set(LEVELS) and all(each["own"]["counts"] for each in graded["criteria"])
    assert len(run("history")["attempts"]) == 1 and find_drill(FLAGSHIP).title in run("list")["drills"][0]["tags"]
    run("grade", FLAGSHIP, "--answer", str(answer), "--no-keep")
    assert len(run("history")["attempts"]) == 1
    assert run("grade", FLAGSHIP, "--answer", "-", stdin=b"\xff\xfe\x00 queue")["headline"].startswith(
        "commitments 0 of 9"
    )


def test_a_terminal_asks_for_every_stage() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    criteria, facts = len(drawn.rubric.criteria), len(drawn.rubric.must_say)
    finding = talk_of(drawn).facts[1].key
    said = ["?1", "?99", "The queue it is, and 80 ms x 180 = 14.4 s of decoding in all.", "."]
    said += ["queue", "nonsense", "decode", "5.4", "times", "admission", "", "", finding, "kv_quant"]
    said += ["because of that"] * (2 * PUSHBACKS) + ["agree 80"] * 8
    said += ["weak"] * (2 * criteria) + ["strong", "The queue it is, and 80 ms x 180"] + ["weak", ""] * (criteria - 1)
    said += [""] * facts + [""] * 8
    result = run("grade", FLAGSHIP, stdin="\n".join(said) + "\n")
    expected = Commit(dominant="queue", second="decode", number="5.4", unit="times", fixes=("admission",))
    assert Commit.model_validate(result["commit"]) == expected.model_copy(
        update={"finding": finding, "then": "kv_quant"}
    )
    assert result["calibration"]["graded"] == 2 * criteria and result["criteria"][0]["own"]["counts"]
    assert [each["then"] for each in result["turns"]] == ["because of that"] * PUSHBACKS
    assert len(result["asked"]) == 1 and all(each["answer"]["sure"] == 80 for each in result["statements"])
    mocked = run("mock", stdin="\n".join(["An answer.", "."]) + "\n")
    assert len(mocked["rounds"]) == 1 and "All in all" in mocked["debrief"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("grade", "nope", "--answer", "-"),
        ("grade", FLAGSHIP, "--answer", "-"),
        ("show", "nope"),
        ("grade", FLAGSHIP, "--answer", "/no/such/file"),
        ("grade", FLAGSHIP, "--dominant", "moon"),
        ("grade", FLAGSHIP, "--fix", "tp", "--fix", "tp"),
        ("grade", FLAGSHIP, "--sheet", "/no/such/file"),
        ("grade", FLAGSHIP, "--number", "many"),
        ("grade", FLAGSHIP, "--statement", "agree"),
        ("grade", FLAGSHIP, "--statement", "9=agree"),
        ("grade", FLAGSHIP, "--ask", "moon"),
        ("statements", "nope"),
    ],
)
def test_mistakes_at_the_terminal_are_said_in_words(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, MinillmError) and not attempts.FILE.read().done


def test_history_holds_old_attempts_too(home: Path) -> None:
    old = {"drill": FLAGSHIP, "seed": 0, "when": "2025-01-01", "answer": "<b>", "level": "weak", "points": 0.2}
    old |= {"milestones": {"two": 3.0}, "dimensions": {"diagnosis": 0.1}, "self_score": {"diagnosis": "staff"}}
    (home / "drills.json").write_text(json.dumps({"done": [old] * attempts.RECENT}))
    drawn = find_drill(FLAGSHIP).drawn()
    for _ in range(attempts.RECENT):
        attempts.keep(attempts.attempt_of(ideal(drawn, "staff")))
    attempts.keep(attempts.attempt_of(Sitting(drawn, "ungraded", Commit())))
    done = attempts.FILE.read().done
    assert len(done) == 2 * attempts.RECENT + 1 and done[0].milestones == {"two": 3.0}
    assert attempts.standing(done)["diagnosis"] == 1, "what wasn't graded weighs nothing"
    assert ("diagnosis by phase", "100%", "+72%") in report.summary(done)
    page = report.report(done)
    assert "<b>" not in page.split("<pre>")[-1].split("</pre>")[0] and "weak" in page
    assert report.history_picture(done).svg().count("<rect") >= len(done)
    assert run("history")["advice"].startswith("Practise next")


def test_the_lessons_bets_are_decided_by_running() -> None:
    dump = find_drill(FLAGSHIP).drawn()
    assert lesson.duel(dump).answer == lesson.ADMITS
    assert lesson.strong_to_staff(dump).answer in lesson.APART
    rule = str(lesson.rule_table())
    assert "staff" in str(lesson.samples_table(dump))
    assert "+1.00" not in rule and "-" not in rule and "−0.00" not in rule
    assert str(lesson.right_menus(dump)).count("No hire yet") == 2
    assert dump.drill.title not in str(lesson.drills_table())


def test_the_check_knows_its_numbers() -> None:
    dump = find_drill(FLAGSHIP).drawn()
    check, derived = checks(dump), dump.numbers.derived
    for question, key in (("q1", "decode"), ("q2", "servers"), ("q3", "in_flight")):
        assert check(question, derived[key].value).score == 1
        assert check(question, 3 * derived[key].value).score == 0
        assert check(question, "many").score == 0
    assert check("q4", 82).score == 1 and check("q4", 0.82).score == 0


def test_a_recorder_sends_nothing_anywhere() -> None:
    page = recorder_html("d")
    assert "MediaRecorder" in page and "d-record" in page and "NAME" not in page
    assert not any(word in page for word in ("fetch(", "XMLHttpRequest", "sendBeacon", "WebSocket", "://"))

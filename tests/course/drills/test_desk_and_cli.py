"""Sitting a drill stage by stage, keeping it, and the same in a terminal."""

import json
from pathlib import Path

import pytest
from drills.test_graders import ideal
from typer.testing import CliRunner

from course.drills import attempts, lesson, report
from course.drills.cli import app
from course.drills.desk import DrillDesk, MockInterview, solution
from course.drills.drill import LEVELS, Commit
from course.drills.library import ALL, FLAGSHIP, find_drill
from course.drills.sitting import Sitting
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


def fill_in(desk: DrillDesk, **values: str) -> None:
    for key, value in values.items():
        desk.fields[key.replace("_", " ")].value = value
    desk.go_on()


def test_a_desk_goes_through_its_stages_in_order() -> None:
    desk = DrillDesk(FLAGSHIP, now=(clock := MadeClock()))
    good = ideal(desk.sitting.drill, "strong")
    assert "A100" not in desk.prompt.value
    desk.hand_in()
    desk.go_on()
    assert not desk.sitting.text and not desk.asked.children, "nothing is handed in before the clock runs"
    desk.begin()
    assert "A100" in desk.prompt.value
    desk.hand_in()
    assert "Nothing is written" in desk.result.value and not attempts.FILE.read().done
    desk.answer.value = good.text
    clock.now += 742
    desk.hand_in()
    assert "12:22 of 12:00" in desk.result.value
    desk.go_on()  # nothing is committed yet: refused
    fill_in(desk, dominant="queue", number="5.4 times", fix_1="admission", fix_2="admission")
    assert desk.sitting.commit == Commit(dominant="queue", number="5.4 times", fixes=("admission",))
    first = next(iter(desk.fields))
    fill_in(desk, **{first: "Quantization cuts the queue."})
    for label in "AB":
        assert "Hand in and grade" in str(solution(desk)) and "staff answer" not in desk.result.value
        fill_in(desk, **good.samples[label])
    for key, (level, quote) in good.own_written.items():
        desk.fields[key].value, desk.fields[f"{key} quote"].value = level, quote
    desk.go_on()
    desk.go_on()
    (kept,) = attempts.FILE.read().done
    assert kept.seconds == pytest.approx(742) and kept.weight == 1 and kept.samples == good.samples
    assert kept.replies == {first: "Quantization cuts the queue."}
    assert kept.self_score == {key: level for key, (level, _) in good.own_written.items()}
    assert "A staff answer" in desk.result.value and "bound by arithmetic" in desk.result.value


def test_a_mock_interview_ends_with_what_went_wrong() -> None:
    mock = MockInterview(seed=2)
    mock.finish()
    assert "No round is over" in mock.told.value and len(mock.desks) == 3
    short = mock.desks[1]
    short.begin()
    short.answer.value = "Replicas shorten each decode step."
    short.hand_in()
    short.fields["dominant"].value = "queue"
    for pressed in (1, 1, 2, 2):
        short.go_on(pressed)
    assert short.is_over and short._on.disabled and not short.sitting.samples, "a short one is over after the pushback"
    mock.finish()
    assert "Wrong" in mock.told.value and "Most points were lost" in mock.told.value


def run(*arguments: str, stdin: str | bytes = "") -> dict:
    result = CliRunner().invoke(app, [*arguments, "--json"], input=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_terminal_lists_shows_and_grades(home: Path) -> None:
    assert [row["id"] for row in run("list")["drills"]] == [drill.id for drill in ALL]
    shown = run("show", FLAGSHIP, "--seed", "3")
    drawn = find_drill(FLAGSHIP).drawn()
    assert shown["prompt"] == find_drill(FLAGSHIP).drawn(3).prompt and "model_answers" not in shown
    good = ideal(drawn, "strong")
    answer, sheet = home / "answer.md", home / "sheet.json"
    answer.write_text(good.text)
    sheet.write_text(json.dumps({"samples": good.samples, "own": good.own_written}))
    fixes = [part for each in good.commit.fixes for part in ("--fix", each)]
    options = (
        "--dominant",
        "queue",
        "--second",
        "kv_room",
        "--number",
        good.commit.number,
        *fixes,
        "--sheet",
        str(sheet),
    )
    graded = run("grade", FLAGSHIP, "--answer", str(answer), *options)
    assert graded["computed"]["points"] > 8 and graded["calibration"]["weight"] == 1
    assert set(graded["model_answers"]) == set(LEVELS) and all(each["own"]["counts"] for each in graded["criteria"])
    assert len(run("history")["attempts"]) == 1
    run("grade", FLAGSHIP, "--answer", str(answer), "--no-keep")
    assert len(run("history")["attempts"]) == 1
    assert run("grade", FLAGSHIP, "--answer", "-", stdin=b"\xff\xfe\x00 queue")["computed"]["points"] == 0


def test_a_terminal_asks_for_every_stage() -> None:
    criteria = len(find_drill(FLAGSHIP).rubric.criteria)
    said = [
        "The queue it is, and 80 ms x 180 = 14.4 s.",
        ".",
        "queue",
        "nonsense",
        "decode",
        "5.4 times",
        "admission",
        "",
        "",
    ]
    said += (
        ["because of that"] * 3
        + ["weak"] * (2 * criteria)
        + ["strong", "The queue it is"]
        + ["weak", ""] * (criteria - 1)
    )
    result = run("grade", FLAGSHIP, stdin="\n".join(said) + "\n")
    assert result["commit"] == {"dominant": "queue", "second": "decode", "number": "5.4 times", "fixes": ["admission"]}
    assert result["calibration"]["graded"] == 2 * criteria and result["criteria"][0]["own"]["counts"]
    assert [each["reply"] for each in result["follow_ups"]] == ["because of that"] * 3
    mocked = run("mock", stdin="\n".join(said) + "\n")
    assert [each["drill"] for each in mocked["rounds"]] == [FLAGSHIP] and "14.4" not in mocked["debrief"]


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
    assert lesson.duel(find_drill("p99-8s").drawn())[0].answer == lesson.QUICK
    assert lesson.strong_to_staff(dump).answer in lesson.APART
    assert "staff" in str(lesson.samples_table(dump))


def test_the_check_knows_its_numbers_and_names_slips() -> None:
    dump = find_drill(FLAGSHIP).drawn()
    check = checks(dump)
    derived = dump.numbers.derived
    for question, key in (("q1", "decode"), ("q2", "servers"), ("q3", "in_flight")):
        assert check(question, derived[key].value).score == 1
        assert check(question, 3 * derived[key].value).score == 0
        assert check(question, "many").score == 0
    good = "Decode takes 80 ms x 180 = 14.4 s, so most of the wait is decoding."
    assert check("q4", good).score == 2
    assert "doesn't work out" in str(check("q4", "Decode takes 80 ms x 180 = 20 s in all."))
    assert check("q4", 3).score == 0

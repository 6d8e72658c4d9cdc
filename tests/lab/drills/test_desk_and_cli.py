"""Sitting a drill, keeping it, and the same in a terminal."""

import json
import re
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from course.lab.drills import attempts, judge, lesson, report
from course.lab.drills.cli import app
from course.lab.drills.desk import MILESTONES, Desk, solution
from course.lab.drills.drill import DIMENSIONS
from course.lab.drills.grade import grade
from course.lab.drills.library import ALL, FLAGSHIP, find_drill
from course.lab.lesson_13.checks import checks
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


def test_a_desk_shows_prompt_and_solution_only_in_their_turn() -> None:
    clock = MadeClock()
    desk = Desk(FLAGSHIP, now=clock)
    assert "A100" not in desk.prompt.value
    desk.hand_in()
    assert desk.grade is None, "nothing is handed in before the clock runs"
    desk.begin()
    assert "A100" in desk.prompt.value
    assert "Submit first" in str(solution(desk))
    desk.hand_in()
    assert desk.grade is None and "Nothing is written" in desk.result.value and not attempts.FILE.read().done
    clock.now += 42
    desk.answer.value = "I want TTFT and ITL apart."
    clock.now += 700
    desk.own["diagnosis"].value = "strong"
    desk.hand_in()
    assert desk.reached == {"two": pytest.approx(42)}
    assert "12:22 of 12:00" in desk.result.value
    assert "A staff answer" in desk.result.value
    (kept,) = attempts.FILE.read().done
    assert kept.seconds == pytest.approx(742)
    assert kept.self_score == {"diagnosis": "strong"}
    desk.hand_in()
    assert len(attempts.FILE.read().done) == 1, "once is enough"


def test_what_looks_at_the_whole_text_does_so_once() -> None:
    """Begun anew at each character, it would take minutes over a long answer, at every key press."""
    sign = re.compile(MILESTONES["two"][1], re.S)
    text = " ttft here, itl there"
    assert sign.search(text)
    assert not any(sign.search(text, begin) for begin in range(1, len(text)))


def run(*arguments: str, stdin: str | bytes = "") -> dict:
    result = CliRunner().invoke(app, [*arguments, "--json"], input=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_terminal_lists_shows_and_grades(home: Path) -> None:
    listed = run("list")["drills"]
    assert [row["id"] for row in listed] == [drill.id for drill in ALL]
    shown = run("show", FLAGSHIP, "--seed", "3")
    assert shown["prompt"] == find_drill(FLAGSHIP).drawn(3).prompt
    assert "model_answers" not in shown
    answer = home / "answer.md"
    answer.write_text(find_drill(FLAGSHIP).drawn().answers["strong"])
    graded = run("grade", FLAGSHIP, "--answer", str(answer), "--self-score", "diagnosis=staff,evidence=weak")
    assert graded["level"] == "strong"
    assert set(graded["model_answers"]) == {"weak", "passing", "strong", "staff"}
    first = graded["dimensions"][0]
    assert first["self_score"] == "staff" and first["evidence"] and "advice" in first
    assert run("history")["attempts"][0]["level"] == "strong"
    run("grade", FLAGSHIP, "--answer", str(answer), "--no-keep")
    assert len(run("history")["attempts"]) == 1


def test_an_answer_from_standard_input_may_be_garbled() -> None:
    assert run("grade", "p99-8s", "--answer", "-", stdin=b"\xff\xfe\x00 queue")["level"] == "weak"


@pytest.mark.parametrize(
    "arguments",
    [("grade", "nope", "--answer", "-"), ("grade", FLAGSHIP, "--answer", "-"),
     ("grade", FLAGSHIP, "--answer", "/no/such/file"),
     ("grade", FLAGSHIP, "--answer", "-", "--self-score", "tone=weak"), ("show", "nope")],
)  # fmt: skip
def test_mistakes_at_the_terminal_are_said_in_words(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, MinillmError)


def test_history_trend_and_what_to_practise_next(home: Path) -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    for level in ["weak"] * attempts.RECENT + ["staff"] * attempts.RECENT:
        text = drawn.answers[level]
        attempts.keep(attempts.attempt_of(grade(drawn, text), text, {"diagnosis": "staff"}))
    done = attempts.FILE.read().done
    assert all(change > 0 for change in attempts.trend(done).values())
    assert attempts.bias(done) > 1, "always 'staff', half of the time weak"
    dimension, next_drill = attempts.practise_next(done)
    assert dimension in DIMENSIONS and next_drill != FLAGSHIP
    page = report.report(done)
    assert "<script" not in page and "staff" in page
    assert report.history_picture(done).svg().count("<rect") >= len(done)
    (home / "drills.json").write_text("{broken")
    assert attempts.FILE.read().done == []
    assert (home / "drills.broken").exists()


def test_an_answer_cannot_smuggle_markup_into_the_report() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    text = "<script>alert(1)</script>"
    assert "<script>" not in report.report([attempts.attempt_of(grade(drawn, text), text)])


def judged(reply: httpx.Response) -> judge.Opinion:
    client = httpx.Client(transport=httpx.MockTransport(lambda request: reply))
    return judge.ask(find_drill(FLAGSHIP).drawn(), "an answer", "http://judge/v1", "m", client)


def test_a_second_opinion_is_read_and_marked() -> None:
    said = 'Here: {"diagnosis": {"level": "Strong", "reason": "named it"}, "tone": {"level": "weak"}}'
    opinion = judged(httpx.Response(200, json={"choices": [{"message": {"content": said}}]}))
    assert opinion.levels == {"diagnosis": "strong"}
    assert "counts for nothing" in str(opinion)


@pytest.mark.parametrize(
    "reply",
    [httpx.Response(500), httpx.Response(200, text="no json"), httpx.Response(200, json={"choices": []}),
     httpx.Response(200, json={"choices": [{"message": {"content": None}}]}),
     httpx.Response(200, json={"choices": [{"message": {"content": "{broken"}}]}), httpx.Response(200, json=[])],
)  # fmt: skip
def test_a_judge_that_fails_says_so_and_breaks_nothing(reply: httpx.Response) -> None:
    assert judged(reply).problem


def test_the_lessons_bets_are_decided_by_the_rules() -> None:
    dump = find_drill(FLAGSHIP).drawn()
    outcome, _ = lesson.duel(dump)
    assert outcome.answer == lesson.QUICK
    assert grade(dump, lesson.stuffed_answer()).level in ("weak", "passing")
    assert lesson.biggest_step(dump).answer in DIMENSIONS.values()
    assert "staff" in str(lesson.levels_table(dump))


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
    assert "does not come out" in str(check("q4", "Decode takes 80 ms x 180 = 20 s in all."))
    assert check("q4", 3).score == 0

"""A learner exports what is kept; a teacher makes tables of many exports."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

from course.drills import attempts
from course.grading import classroom
from course.grading.__main__ import app
from course.grading.exercises import find
from course.grading.handed_in import LARGEST
from course.grading.history import History
from course.grading.source import answer_file
from course.lab import progress
from course.lab.json_store import JsonFile

EXERCISE = find("block-pool")


def work() -> None:
    """One lesson, one exercise with a hint, one drill."""

    def lesson(content: progress.Progress) -> None:
        record = content.lesson("06")
        record.predictions = {"locked": None, "right": 1.0, "half": 0.5}
        record.checks = {"q1": progress.Answered(score=2, possible=3)}

    JsonFile(progress.FILE.path, progress.Progress).change(lesson)
    history = History()
    assert history.add_attempt(EXERCISE, seed=1, score=EXERCISE.max_score / 2) is None
    assert history.add_hint(EXERCISE, 1) is None
    assert history.add_attempt(EXERCISE, seed=2, score=EXERCISE.max_score) is None
    attempts.keep(
        attempts.DrillAttempt(
            drill="p99-8s",
            seed=0,
            when="2030-01-01T00:00:00",
            answer="Queue.",
            level="weak",
            points=0.25,
            dimensions={"diagnosis": 0.25},
        )
    )


def export(name: str, path: Path) -> classroom.Learner:
    result = CliRunner().invoke(app, ["export", "--name", name, "--out", str(path)])
    assert result.exit_code == 0, result.output
    return classroom.read(path)


def test_an_export_holds_everything_that_is_kept(tmp_path: Path) -> None:
    work()
    learner = export("Ada", tmp_path / "ada.json")
    assert learner.lessons["06"].checks["q1"].score == 2
    [done] = learner.exercises
    assert done.points == History().standing(EXERCISE).best < done.possible == EXERCISE.max_score
    assert (done.attempts, done.hints) == (2, 1)
    assert [event["seed"] for event in learner.events if event["event"] == "attempt"] == [1, 2]
    assert learner.drills[0].answer == "Queue."


def test_a_machine_without_history_exports_an_empty_one(tmp_path: Path) -> None:
    learner = export("Bo", tmp_path / "bo.json")
    assert not (learner.lessons or learner.exercises or learner.drills or learner.events)
    assert "Bo" in classroom.as_text([learner])


def test_a_home_that_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "home" / "progress.json").mkdir(parents=True)
    result = CliRunner().invoke(app, ["export", "--name", "Ada"])
    assert result.exit_code == 2 and "progress.json" in result.stderr and "Traceback" not in result.stderr


def test_the_table_has_a_row_for_each_learner(tmp_path: Path) -> None:
    idle = export("Bo", tmp_path / "bo.json")
    work()
    busy = export("Ada", tmp_path / "ada.json")
    table = classroom.by_learner([idle, busy])
    assert list(table.index) == ["Ada", "Bo"]
    ada = table.loc["Ada"]
    assert (ada.lessons, ada.predictions, ada.predicted_right) == (1, 3, 0.75)
    assert (ada.check_points, ada.check_possible, ada.hints, ada.drills) == (2, 3, 1, 1)
    assert ada["last"] == "2030-01-01T00:00:00"
    assert table.loc["Bo"].exercise_points == 0


def test_exercises_are_listed_the_worst_first() -> None:
    def learner(name: str, **points: float) -> classroom.Learner:
        exercises = [
            classroom.DoneExercise(id=id, attempts=2, hints=0, points=earned, possible=10)
            for id, earned in points.items()
        ]
        return classroom.Learner(name=name, exported="", version="", exercises=exercises)

    table = classroom.by_exercise([learner("Ada", easy=10, hard=3), learner("Bo", easy=8), learner("Cy")])
    assert list(table.index) == ["hard", "easy"]
    assert table.loc["easy"].share == pytest.approx(0.9)
    assert list(table.tried_by) == [1, 2]


def test_the_command_writes_text_json_and_csv(tmp_path: Path) -> None:
    work()
    export("Ada", tmp_path / "ada.json")
    files = [str(tmp_path / "ada.json")]
    text = CliRunner().invoke(app, ["class", *files, "--csv", str(tmp_path / "class.csv")])
    assert text.exit_code == 0 and "Ada" in text.stdout and EXERCISE.id in text.stdout
    assert (tmp_path / "class.csv").read_text().startswith("learner,lessons,")
    tables = json.loads(CliRunner().invoke(app, ["class", *files, "--json"]).stdout)
    assert tables["learners"][0]["learner"] == "Ada"
    assert tables["exercises"][0]["exercise"] == EXERCISE.id


def test_what_a_class_handed_in_is_graded_with_the_teachers_seed_and_not_kept(tmp_path: Path) -> None:
    right, stub = tmp_path / "right.py", tmp_path / "stub.py"
    right.write_text(answer_file(EXERCISE, "solution"))
    stub.write_text(answer_file(EXERCISE, "stub"))
    files = [str(right), str(stub), str(tmp_path / "missing.py")]
    arguments = ["rerun", EXERCISE.id, *files, "--seed", "5", "--csv", str(tmp_path / "class.csv")]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 0 and len((tmp_path / "class.csv").read_text().splitlines()) == 1 + len(files)
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [each["points"] for each in found["answers"]] == [EXERCISE.max_score, 0.0, None]
    first = [each["first_mistake"] for each in found["answers"]]
    assert first[0] == "" and "not written yet" in first[1] and "missing.py" in first[2]
    assert History().standing(EXERCISE).attempts == 0


def test_a_table_of_reruns_has_the_rows_so_far_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[classroom.Rerun]:
        yield classroom.Rerun("ada.py", 12.0, 12.0, "")
        raise KeyboardInterrupt

    monkeypatch.setattr(classroom, "rerun", interrupted)
    table = tmp_path / "class.csv"
    CliRunner().invoke(app, ["rerun", EXERCISE.id, "ada.py", "bo.py", "--seed", "5", "--csv", str(table)])
    assert table.read_text().splitlines() == ["file,points,possible,first_mistake", "ada.py,12.0,12.0,"]


def test_a_table_that_cannot_be_written_is_told_before_anything_is_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classroom, "rerun", lambda *_: pytest.fail("graded all the same"))
    nowhere = str(tmp_path / "no" / "class.csv")
    result = CliRunner().invoke(app, ["rerun", EXERCISE.id, "ada.py", "--seed", "5", "--csv", nowhere])
    assert result.exit_code != 0 and "cannot write" in result.output


def test_a_cell_that_python_cannot_read_costs_its_own_answer_only(tmp_path: Path) -> None:
    name, right = EXERCISE.entry_points[0], answer_file(EXERCISE, "solution")
    odd = ("x = '\ud800'", "x = 1" + "+1" * 100_000, "x = a" + ".b" * 20_000, "x = 0\0")
    files = [tmp_path / f"{number}.ipynb" for number in range(len(odd))]
    for file, cell in zip(files, odd):
        cells = [
            new_code_cell(f"{cell}\ndef {name}(): ..."),
            new_code_cell(right),
            new_code_cell(f'check("{EXERCISE.id}", 1)'),
        ]
        file.write_text(json.dumps(new_notebook(cells=cells)))
    (tmp_path / "right.py").write_text(right)
    *unread, read = classroom.rerun(EXERCISE, [*files, tmp_path / "right.py"], seed=5)
    assert all(row.points == 0 and row.first_mistake for row in unread) and len(unread) == len(odd)
    assert read.points == EXERCISE.max_score


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(LARGEST + 1)
    [row] = classroom.rerun(EXERCISE, [tmp_path / "large.py"], seed=5)
    assert row.points is None and "MB" in row.first_mistake


def test_a_nameless_export_is_refused() -> None:
    assert CliRunner().invoke(app, ["export", "--name", " "]).exit_code == 2


LEARNER = classroom.Learner(name="Ada", exported="", version="")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        *((("not JSON",), "0.json"), (("",), "0.json"), (("[1]",), "0.json"), (('{"name": 3}',), "0.json")),
        ((LEARNER.model_copy(update={"format": "minillm-learner-9"}).model_dump_json(),), "minillm-learner-9"),
        ((LEARNER.model_dump_json(),) * 2, "Ada"),
    ],
    ids=["text", "nothing", "a list", "another kind", "from the future", "one learner twice"],
)
def test_what_no_class_can_be_made_of_is_refused_by_name(texts: tuple[str, ...], words: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_text(text)
    result = CliRunner().invoke(app, ["class", *map(str, paths)])
    assert result.exit_code == 2
    assert words in result.stderr and "Traceback" not in result.stderr

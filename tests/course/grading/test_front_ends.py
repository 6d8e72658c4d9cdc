"""The command line, the notebook's check and hint, and the history they share."""

import ast
import json
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner, Result
from wrong_answers import names_of

from course.grading import WrongAnswerError
from course.grading.__main__ import app
from course.grading.exercises import find, ids
from course.grading.handed_in import HandedInError, answer_text
from course.grading.history import History
from course.grading.notebook import advise, check, hint

ROOT = Path(__file__).parents[3]


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_it_is_a_program_that_prints_json_only() -> None:
    command = [sys.executable, "-m", "course.grading", "list", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout)
    assert sorted(exercise["id"] for exercise in listed) == ids()


def test_from_the_stub_to_full_marks(tmp_path: Path) -> None:
    answer = tmp_path / "answer.py"
    answer.write_text(cli("solution", "percentiles").stdout)
    done = cli("check", "percentiles", str(answer), "--seed", "5", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert set(report) == {"score", "max_score", "criteria"}
    assert report["score"] == report["max_score"] == sum(each["max_score"] for each in report["criteria"])
    assert all(set(each) == {"name", "score", "max_score", "feedback"} for each in report["criteria"])
    answer.write_text(cli("stub", "percentiles").stdout)
    assert cli("check", "percentiles", str(answer), "--strict").exit_code == 1
    summary = json.loads(cli("summary", "--json").stdout)
    standing = next(each for each in summary["exercises"] if each["id"] == "percentiles")
    assert standing["attempts"] == 2
    assert standing["best"] == standing["max_score"]


def test_unknown_exercises_and_files_are_refused_with_a_tip() -> None:
    unknown = cli("stub", "block_pol")
    assert unknown.exit_code == 2
    assert "'block-pool'" in unknown.stderr
    assert "nowhere.py" in cli("check", "block-pool", "nowhere.py").stderr


@pytest.mark.parametrize("name", ids())
def test_a_notebook_that_is_handed_in_defines_what_the_exercise_asks_for(name: str) -> None:
    exercise = find(name)
    [notebook] = (ROOT / "solutions").glob(f"{exercise.lesson:02d}_*.ipynb")
    defined = {getattr(each, "name", "") for each in ast.parse(answer_text(notebook, exercise)).body}
    assert set(exercise.entry_points) <= defined


CELLS = """from course.lab import check, hint
import torch, math
---
TOO_EARLY = math.tau
---
*percentiles · an exercise*
---
HALF = 0.5
first = percentile([1], HALF)
hint("percentiles")
---
lab = 1
from course.lab import Lab
---
@decorated
def percentile(values, q):  # mine
    return values[0]
percentile([3], 1)
---
check("percentiles", percentile)
---
def percentile(): ...
"""


def test_of_a_notebook_neither_scratch_work_nor_the_labs_runs_are_graded(tmp_path: Path) -> None:
    cells = [new_code_cell(each.strip()) for each in CELLS.split("---")]
    cells[2] = new_markdown_cell(cells[2].source)
    path = tmp_path / "mine.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    own = "@decorated\ndef percentile(values, q):  # mine\n    return values[0]"
    assert answer_text(path, find("percentiles")).split("\n\n") == ["import torch, math", "HALF = 0.5", f"{own}\n"]
    with pytest.raises(HandedInError, match="block-pool"):
        answer_text(path, find("block-pool"))
    path.write_text("no notebook")
    with pytest.raises(HandedInError, match="isn't a notebook"):
        answer_text(path, find("percentiles"))
    with pytest.raises(HandedInError, match="folder"):
        answer_text(tmp_path, find("percentiles"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_is_read_as_editors_and_powershell_write_it(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_bytes("x = 'é'\r\n".encode(encoding))
    assert answer_text(tmp_path / "answer.py", find("percentiles")) == "x = 'é'\r\n"


def test_a_syntax_error_is_told_once_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("x = 1\ndef percentile(values, q)\n    return 0\n")
    done = cli("check", "percentiles", str(tmp_path / "answer.py"), "--seed", "3", "--no-save")
    assert done.stdout.count("line 2") == 1 and "expected ':'" in done.stdout
    assert "--seed 3" in done.stdout and "seed=3" not in done.stdout


def test_functions_and_classes_of_a_notebook_are_graded() -> None:
    names = names_of("percentiles")
    for answers in ((names["percentile"], names["two_numbers"]), (names["two_numbers"], names["percentile"]), (names,)):
        result = check("percentiles", *answers, seed=3, strict=True)
        assert result.score == result.max_score
        assert "seed=3" in str(result)
        assert "seed=3" in result._repr_mimebundle_()["text/html"]
    assert check("block-pool", names_of("block-pool")["BlockPool"]).score == find("block-pool").max_score


def test_a_notebook_answer_never_raises_unless_strict() -> None:
    lock = threading.Lock()
    for answer in (None, ..., 3, "tea", lambda *_: lock, [lock]):
        assert check("percentiles", answer).score == 0
    assert "'percentiles'" in str(check("percentile", None))
    assert check("percentiles").score == 0
    with pytest.raises(WrongAnswerError):
        check("percentiles", names_of("percentiles", "stub"), strict=True)


def test_hints_cost_points_once_and_only_for_later_attempts() -> None:
    exercise, history = find("percentiles"), History()
    history.add_attempt(exercise, 0, 6.0)
    assert history.standing(exercise).best == 6.0
    assert exercise.hints[0].text in str(hint("percentiles"))
    assert exercise.hints[1].text in str(hint("percentiles"))
    assert exercise.hints[0].text in str(hint("percentiles", 1))
    assert history.standing(exercise).hints == 2
    history.add_attempt(exercise, 0, exercise.max_score)
    cost = sum(each.cost for each in exercise.hints[:2]) * exercise.max_score
    assert history.standing(exercise).best == pytest.approx(exercise.max_score - cost)
    assert f"1 to {len(exercise.hints)}" in str(hint("percentiles", 9))
    assert "'percentiles'" in str(hint("percentil"))


def test_a_history_survives_corruption(tmp_path: Path) -> None:
    exercise, history = find("percentiles"), History(tmp_path / "h.jsonl")
    history.add_attempt(exercise, 0, 1.0)
    for broken in (b"\xff\xfe", b"[1]\n", b'{"exercise": "percentiles", "event": "attempt"}\n', b'{"cut off": '):
        with open(history.path, "ab") as file:
            file.write(broken)
        history.add_attempt(exercise, 0, 7.0)
    assert history.standing(exercise).best == 7.0
    assert sum(event.get("score") == 7.0 for event in history.events()) == 4


def test_a_folder_without_rights_costs_the_note_only(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "file" / "below"))
    assert "not saved" in str(check("percentiles", names_of("percentiles")))
    assert "not saved" in str(hint("percentiles"))


def test_builds_leave_no_history(monkeypatch) -> None:
    monkeypatch.setenv("MINILLM_STRICT", "1")
    hint("percentiles")
    with pytest.raises(WrongAnswerError):
        check("percentiles", None)
    assert not History().path.exists()


@pytest.mark.parametrize(
    ("cell", "advice"),
    [
        ("check('block-pool', Pool)", "run the cell above it"),
        ("check('block-pool', str(1, 2, 3, 4))", "without brackets"),
        ("Pool", None),
        ("def f(): return Pool\nf()  # check(...)", None),
    ],
)
def test_an_error_in_the_line_of_a_check_is_followed_by_advice(
    cell: str, advice: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = InteractiveShell()
    advise(shell)
    shell.user_ns["check"] = check
    assert not shell.run_cell(cell, store_history=True).success
    told = capsys.readouterr().out
    assert "Error" in told
    assert [each for each in ("run the cell above it", "without brackets") if each in told] == (
        [advice] if advice else []
    )

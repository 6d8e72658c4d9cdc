"""Files that people save from a Windows editor begin with a byte order mark: it belongs to none of them."""

from codecs import BOM_UTF8
from pathlib import Path

from typer.testing import CliRunner

from course.drills import cli as drills
from course.grading import __main__ as exercises
from course.grading import classroom
from course.grading.exercises import find
from course.grading.source import answer_file
from course.lab import progress


def marked(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BOM_UTF8 + text.encode())
    return path


def test_an_answer_to_an_exercise(tmp_path: Path) -> None:
    file = marked(tmp_path / "answer.py", answer_file(find("percentiles"), "solution"))
    done = CliRunner().invoke(exercises.app, ["check", "percentiles", str(file), "--strict", "--no-save"])
    assert done.exit_code == 0, done.output


def test_an_answer_to_a_drill(tmp_path: Path) -> None:
    assert drills._read(str(marked(tmp_path / "answer.md", "Prefill."))) == "Prefill."


def test_a_learners_export_and_what_is_kept_of_them(tmp_path: Path, home: Path) -> None:
    learner = classroom.Learner(name="A", exported="2026-01-01", version="0")
    assert classroom.read(marked(tmp_path / "export.json", learner.model_dump_json())) == learner
    kept = progress.Progress()
    kept.lesson("06")
    marked(home / "progress.json", kept.model_dump_json())
    assert progress.FILE.read() == kept

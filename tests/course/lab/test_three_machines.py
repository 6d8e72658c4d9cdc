"""How it is told what lessons say on each machine. All are played on one by `make test`, on both by `make slow`."""

import json
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from course.lab.build import lesson_sources
from course.lab.three_machines import (
    LESSONS,
    MACHINES,
    CellReport,
    as_markdown,
    main,
    read_reports,
    resting_on_the_lab,
)

MOE = CellReport("06b", 2, "note", "share.score(found)", "no router")


def test_every_lesson_that_runs_on_the_labs_device_is_played() -> None:
    of_the_device = {path.stem.partition("_")[0] for path in lesson_sources() if path.name < "11"}
    assert set(LESSONS) == of_the_device


def test_a_lesson_under_a_simulated_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h100-8b.json").write_text(json.dumps([{**MOE.__dict__, "lesson": "00"}]))
    assert main(["h100-8b", "06b", "--out", str(tmp_path)]) == 0
    assert "06b: 5 cells, 0 failed" in capfd.readouterr().out
    reports = read_reports(tmp_path / "h100-8b.json")
    assert {each.lesson for each in reports} == {"00", "06b"}  # another lesson's are kept
    [note] = [each for each in reports if each.kind == "note" and each.cell == 2 and each.lesson == "06b"]
    assert note.words.startswith("Watching which experts a router chooses takes a model that computes")
    assert "## 06b, cell 2" in (tmp_path / "table.md").read_text()


def test_what_uses_nothing_of_the_lab_is_left_out() -> None:
    codes = ("lab = open_lab()", "factor = 2", "draw()", "many = lab.run(8)", "many.mean * factor")
    assert resting_on_the_lab([*map(new_code_cell, codes)]) == {0, 1, 3, 4}


def test_what_machines_were_told_stands_side_by_side() -> None:
    told = {name: [CellReport("00", 8, "Finding", "words(x)", f"as {name}\nsays")] for name in MACHINES}
    text = as_markdown(told)
    assert text.count("## 00, cell 8: `words(x)`") == 1
    assert all(f"- **{name}** (Finding): as {name} says" in text for name in MACHINES)


def test_no_such_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["99"])
    assert "neither a machine nor a lesson: 99" in capsys.readouterr().err

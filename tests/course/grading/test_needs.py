"""Exercises that need what not every machine has, and kernels on their way to the checker."""

import json
import types
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.grading.__main__ import app
from course.grading.attempt import graded
from course.grading.exercises import find
from course.grading.history import History
from course.grading.runner import Submission
from course.grading.ship import pack


def test_what_this_machine_cannot_do_is_no_attempt_and_says_what_is_missing(tmp_path: Path) -> None:
    exercise, history = replace(find("triton-kernel"), needs=("no_such_package",)), History(tmp_path / "h.jsonl")
    result = graded(exercise, Submission.of_text("1 / 0", "answer.py"), 0, history)
    assert result.score == 0 < result.max_score
    assert "no_such_package" in result.criteria[0].feedback
    assert history.standing(exercise).attempts == 0


def test_the_summary_leaves_out_what_this_machine_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    here, absent = find("percentiles"), replace(find("triton-kernel"), needs=("no_such_package",))
    monkeypatch.setattr("course.grading.__main__.catalogue", lambda: (here, absent))

    def total() -> float:
        return json.loads(CliRunner().invoke(app, ["summary", "--json"]).stdout)["max_score"]

    assert total() == here.max_score
    shown = CliRunner().invoke(app, ["summary"]).stdout.splitlines()
    assert ["not on this machine" in line for line in shown] == [False, True, False]
    History().add_attempt(absent, 0, 1.0)  # on another machine, in the same home
    assert total() == here.max_score + absent.max_score


def test_a_kernels_source_travels_with_the_function_that_launches_it() -> None:
    """Triton reads the source of a kernel, which may stand in another cell."""
    kernel_cell = compile("def rows(x):\n    pass\n", "cell 1", "exec")
    launch_cell = compile("def launch(x):\n    return kernel\n", "cell 2", "exec")
    names: dict = {}
    exec(kernel_cell, names)
    exec(launch_cell, names)
    jitted = type("InterpretedFunction", (), {"__module__": "triton.runtime.interpreter"})()
    jitted.fn = names["rows"]
    names["kernel"] = jitted
    assert isinstance(names["launch"], types.FunctionType)
    submission = pack(find("triton-kernel"), ({"rms_norm": names["launch"]},))
    assert set(submission.task["lines"]) == {"cell 1", "cell 2"}

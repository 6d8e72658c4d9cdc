"""Exercises that need what not every machine has, and kernels on their way to the checker."""

import types
from dataclasses import replace

from course.lab.grading.child import grade
from course.lab.grading.exercises import find
from course.lab.grading.ship import pack


def test_without_the_package_the_learner_is_told_to_leave_it_out() -> None:
    exercise = replace(find("triton-kernel"), needs=("no_such_package",))
    messages: list[dict] = []
    grade(exercise, {"lines": {"answer.py": "1 / 0"}, "seed": 0}, messages.append)
    assert len(messages) == 1
    assert "no_such_package" in messages[0]["failed"]
    assert "leave it out" in messages[0]["failed"]


def test_where_it_is_there_nothing_is_missing() -> None:
    assert replace(find("triton-kernel"), needs=("json",)).missing is None


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

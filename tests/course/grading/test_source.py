"""One source gives stubs and solutions; drift of its notebooks is noticed."""

import nbformat
import pytest

from course.grading.source import SourceError, resolve
from course.lab import build

SOURCE = """# %% [markdown] exercise="tea"
# ## Tea


# %% answer="tea"
def steep(minutes):
    # [solution]
    return minutes * 2
    # [stub]
    # if minutes:
    #     raise NotImplementedError("how long?")
    # [end]


def pour():
    # [solution]
    return "cup"
    # [end]


# %%
# [solution]
steep(3)
# [stub]
# # steep(3)
# [end]
"""


def test_marks_are_carried_out() -> None:
    solution, stub = resolve(SOURCE, "solution"), resolve(SOURCE, "stub")
    assert "[" not in solution.replace("[markdown]", "")
    assert "minutes * 2" in solution
    assert "NotImplementedError" not in solution
    assert '    if minutes:\n        raise NotImplementedError("how long?")\n' in stub
    assert "def pour():\n    raise NotImplementedError" in stub
    assert "\n# steep(3)\n" in stub
    for text in (SOURCE, solution, stub):
        compile(text, "source", "exec")


@pytest.mark.parametrize(
    "text",
    [
        "# [solution]",
        "# [stub]",
        "# [end]",
        "# [solution]\n# [solution]\n# [end]",
        "# [solution]\n# [stub]\nx = 1\n# [end]",
    ],
)
def test_marks_out_of_order_are_refused(text: str) -> None:
    with pytest.raises(SourceError):
        resolve(text, "stub")


def test_a_source_is_built_into_two_notebooks_and_drift_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MINILLM_STRICT", "1")  # build_exercises sets it; restored afterwards
    path = tmp_path / "solutions" / "07_tea.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    assert len(build.exercise_problems(path)) == 2
    build.build_exercises(path)
    assert build.exercise_problems(path) == []
    stubs = nbformat.read(tmp_path / "exercises" / "07_tea.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in stubs.cells)
    path.write_text(SOURCE.replace("how long?", "how hot?"))
    assert build.exercise_problems(path) == ["07_tea.ipynb differs from 07_tea.py"]

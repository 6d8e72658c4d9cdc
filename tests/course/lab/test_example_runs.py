"""A second example run, of another machine: recorded, kept as data, and set beside the one on 2 cores."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from course.lab import build, card_model, example_runs, other_machine
from course.lab.example_runs import Bench, NoSuchMachineError
from course.lab.frozen import WIDGET_VIEW
from course.lab.marks import LABEL, TRANSIENT, UNAVAILABLE
from course.lab.other_machine import OtherRun, digests, path_of, read_run, with_other_run, write_run
from course.lab.outcomes import folded_outcomes, runs_of
from course.lab.three_machines import LESSONS

LESSON = "07_example"
SOURCE = """# %% [markdown]
# # A lesson

# %%
from course.lab.lab import Lab

lab = Lab()

# %%
bet = lab.predict("eight", "which?", ["a", "b"])

# %%
eight = lab.run("eight")
bet.score(eight)

# %%
draw(eight)
"""
MOST_BYTES = 3_000_000
OTHER = OtherRun("h100-sxm", "llama-3.1-8b", True, "2026-11-27", {"minillm": "0"}, "10% off", [], {})
H100 = card_model.Box("NVIDIA H100 80GB HBM3", 80 * 10**9, has_weights=True)


@pytest.fixture
def lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lesson's source, its notebook as it was run on 2 cores beside it, and a place for records."""
    monkeypatch.setattr(other_machine, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(example_runs, "COURSE", tmp_path)
    path = tmp_path / f"{LESSON}.py"
    path.write_text(SOURCE)
    notebook = build.read_source(path)
    for cell in notebook.cells[1:]:
        cell.execution_count, cell.outputs = 1, [said("2 cores")]
    build.nbformat.write(folded_outcomes(notebook), path.with_suffix(".ipynb"))
    return path


def said(words: str, **marks: object) -> NotebookNode:
    return new_output("display_data", {"text/plain": words, "text/html": f"<p>{words}</p>"}, metadata=marks)


def recorded(path: Path) -> OtherRun:
    outputs = {"2": [said("an H100")], "3": [said("2 cores")]}
    return replace(OTHER, codes=digests(build.read_source(path).cells), outputs=outputs)


def test_a_record_is_set_beside_without_executing_anything(lesson: Path) -> None:
    write_run(LESSON, recorded(lesson))
    assert read_run(LESSON) == recorded(lesson)
    assert build.problems(lesson) == [
        f"{LESSON}.ipynb: shows another run on h100-8b than the one recorded "
        "(`python -m course.lab.build 07 --prose` puts it in)"
    ]
    build.refresh_prose(lesson)
    assert build.problems(lesson) == []
    notebook = build.nbformat.read(lesson.with_suffix(".ipynb"), as_version=4)
    own, other = runs_of(notebook.cells[3].outputs[0].data["text/html"])
    assert own == "<p>2 cores</p>" and other is not None
    assert other.machine == "On an H100 with an 8B (simulated; not yet measured)."
    assert "Simulated: llama-3.1-8b on h100-sxm, 2026-11-27, minillm 0." in other.html
    assert other.html.startswith("<p>an H100</p>") and "10% off</div>" in other.html
    assert runs_of(notebook.cells[4].outputs[0].data["text/html"])[1] is None, "the same on both machines"
    path_of(LESSON).unlink()
    build.refresh_prose(lesson)
    assert with_other_run(folded_outcomes(notebook), LESSON) == build.nbformat.read(
        lesson.with_suffix(".ipynb"), as_version=4
    ), "without a record it is as it was"


def test_a_changed_cell_and_what_rests_on_it_show_nothing_of_it(lesson: Path) -> None:
    write_run(LESSON, recorded(lesson))
    lesson.write_text(SOURCE.replace("from course.lab.lab import Lab", "from course.lab import Lab"))
    assert recorded(lesson).is_of(build.read_source(lesson).cells), "imports may differ"
    lesson.write_text(SOURCE.replace("draw(eight)", "draw(eight, 2)"))
    cells = build.read_source(lesson).cells
    assert list(read_run(LESSON).runs(cells)) == [3]
    target = lesson.with_suffix(".ipynb")
    notebook = build.nbformat.read(target, as_version=4)
    notebook.cells[4].source = "draw(eight, 2)"
    build.nbformat.write(notebook, target)
    assert "of other code (`python -m course.lab.example_runs 07` records it)" in build.problems(lesson)[0]
    lesson.write_text(SOURCE.replace("lab = Lab()", "lab = Lab(short=True)"))
    assert read_run(LESSON).runs(build.read_source(lesson).cells) == {}, "all of it was run in that lab"


def test_cells_may_move_and_others_come_and_go(lesson: Path) -> None:
    first, *cells = build.read_source(lesson).cells
    more = build.notebook_of("# %%\nnew = 1\n").cells
    moved = [first, *more, *cells]
    assert list(recorded(lesson).runs(moved)) == [4, 5] and recorded(lesson).is_of(moved)
    used = build.notebook_of("# %%\nbet = 2\n").cells
    moved = [first, *cells[:-2], *used, *cells[-2:]]
    assert list(recorded(lesson).runs(moved)) == [], "the score rests on a cell that never ran"


def test_what_is_recorded_is_what_tells_and_lasts(lesson: Path) -> None:
    def run(notebook: NotebookNode, folder: Path, environment: Mapping[str, str]) -> None:
        assert environment["MINILLM_LAB_DEVICE"] == "h100-sxm" and environment["MINILLM_SHORT"] == "0"
        *_, bets, decides, draws = notebook.cells
        bets.outputs = [said("Predict.")]
        decides.outputs = [
            said("a"),
            said("took 2 s", **{TRANSIENT: True}),
            said(f"here; {bench.band}", **{LABEL: True}),
        ]
        decides.outputs[0].data[WIDGET_VIEW] = {}
        decides.outputs += [new_output("stream", name="stderr", text="a warning")]
        draws.outputs = [said("takes a model that computes", **{UNAVAILABLE: True})]

    bench = Bench.simulated()
    found = example_runs.record(LESSON, bench, run)
    assert found.outputs == {"2": [said("a")]}
    assert found.is_of(build.read_source(lesson).cells) and bench.band in found.caveat


def test_what_was_measured_stays_as_long_as_the_code_does(lesson: Path) -> None:
    measured = replace(recorded(lesson), is_simulated=False)
    write_run(LESSON, measured)
    simulated = Bench.simulated()
    assert example_runs.must_stay(LESSON, simulated)
    assert not example_runs.must_stay(LESSON, replace(simulated, is_simulated=False))
    lesson.write_text(SOURCE.replace("draw(eight)", "draw(eight, 2)"))
    assert not example_runs.must_stay(LESSON, simulated)
    assert measured.machine == "On an H100 with an 8B."


def test_a_gpu_that_is_no_h100_or_holds_no_8b_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(example_runs.MODEL, raising=False)
    assert Bench.real(H100, "random weights").environment[example_runs.MODEL] == card_model.LARGE
    with pytest.raises(NoSuchMachineError, match="GPU is NVIDIA A10"):
        Bench.real(replace(H100, gpu="NVIDIA A10"), "")
    with pytest.raises(NoSuchMachineError, match="lessons run on the small model"):
        Bench.real(replace(H100, free_bytes=10**10), "")


def test_every_lesson_on_the_labs_device_has_a_record_and_all_are_small() -> None:
    records = sorted((other_machine.FOLDER / other_machine.MACHINE).iterdir())
    assert {path.name.partition("_")[0] for path in records} == set(LESSONS)
    assert sum(path.stat().st_size for path in records) < MOST_BYTES

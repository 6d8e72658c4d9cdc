"""How a bet ends is folded away below it in a committed notebook; everything else is shown."""

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.lab import build
from course.lab.marks import CONTROL_MOVED, FOLDED, QUIET
from course.lab.outcomes import BETS, INSTEAD, folded_outcomes, names_made, supporting, telling


def shown(source: str, said: str = "42", **metadata: object) -> NotebookNode:
    output = new_output("display_data", {"text/plain": said}, metadata=metadata)
    return new_code_cell(source, outputs=[output], execution_count=1)


def text(source: str) -> NotebookNode:
    return new_markdown_cell(source)


LESSON = [
    shown("one = lab.run('one')"),
    text("### Predict\n\nWhat grows?"),
    shown("bet = lab.predict('eight', 'which?', ['a', 'b'])\nbet", "Predict."),
    shown("eight = lab.run('eight')\nbet.score(grew_most(one, eight))"),
    text("Here they are."),
    shown("draw(eight)"),
    new_code_cell("quietly()", execution_count=2),
    text("## Guided"),
    shown("Dashboard(lab)"),
    shown("draw(one, eight)"),
    shown("one"),
    text("Some words.\n\n## Deep dive"),
    shown("claim(eight)"),
]


def test_what_tells_is_all_to_the_heading_after_the_score_and_then_what_uses_what_decided_it() -> None:
    assert telling(LESSON) == [3, 5, 6, 9]


def test_without_a_bet_nothing_tells() -> None:
    assert telling([cell for cell in LESSON if BETS not in cell.source]) == []


def test_the_next_bet_is_shown_even_when_no_heading_stands_before_it() -> None:
    cells = [LESSON[2], LESSON[3], shown("two = lab.predict('two', 'and now?')\ntwo"), shown("two.score(1)")]
    assert telling(cells) == [1, 3]


def test_names_made_are_variables_that_stay_and_those_that_change() -> None:
    assert names_made("a, b = f(c)\nd = {e: g for e in h}\nbet.score(d)") == {"a", "b", "d"}
    assert names_made("ledger.measure_all()\nbet.score(held(ledger.rows()))") == {"ledger"}


def test_a_call_of_a_modules_is_nothing_that_other_cells_rest_on() -> None:
    codes = ("from lessons import words\nlab = Lab()", "words.numbers()", "lab.prepare()", "words.tell(lab)")
    assert supporting([new_code_cell(code) for code in codes], [3]) == {0, 2, 3}


def test_what_tells_is_folded_and_the_rest_is_untouched() -> None:
    notebook = new_notebook(cells=LESSON)
    bare = folded_outcomes(notebook)
    for index, (cell, before) in enumerate(zip(bare.cells, notebook.cells, strict=True)):
        if index in (3, 5, 9):
            assert [output.data["text/plain"] for output in cell.outputs] == [INSTEAD]
            assert "<pre>42</pre></details>" in cell.outputs[0].data["text/html"]
            assert (cell.source, cell.execution_count) == (before.source, before.execution_count)
        else:
            assert cell == before
    assert notebook.cells[3].outputs[0].data["text/plain"] == "42", "a copy"
    assert folded_outcomes(bare) == bare


def test_what_a_control_moved_by_is_still_known() -> None:
    bare = folded_outcomes(new_notebook(cells=[LESSON[2], LESSON[3], shown("control", "+5%", **{CONTROL_MOVED: 0.05})]))
    assert bare.cells[2].outputs[0].metadata == {CONTROL_MOVED: 0.05, FOLDED: True}


def outcomes_of(cell: NotebookNode) -> list[str]:
    return [str(output.get("data", {}).get("text/plain", output)) for output in cell.outputs]


@pytest.mark.parametrize("path", build.lesson_sources(), ids=lambda path: path.stem)
def test_no_committed_lesson_shows_how_a_bet_ends_unfolded(path) -> None:
    """Not by way of `telling`: walks from each bet to the heading after its score."""
    cells = build.nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells
    bets = [index for index, cell in enumerate(cells) if cell.cell_type == "code" and BETS in cell.source]
    assert bets
    for bet in bets:
        name = cells[bet].source.split(f" = {BETS}")[0].split()[-1]
        score = next(i for i, cell in enumerate(cells) if f"{name}.score(" in cell.source)
        for index, cell in enumerate(cells[bet + 1 :], start=bet + 1):
            if cell.cell_type == "code":
                assert set(outcomes_of(cell)) <= {INSTEAD}, cell.source
            elif index > score and any(line.startswith("#") for line in cell.source.splitlines()):
                break
        assert any("Predict." in str(output) for output in cells[bet].outputs), "the question itself is shown"


def test_exercises_have_no_bets() -> None:
    """If one gets some, its notebooks are treated as the lessons' are."""
    for path in build.source.sources():
        assert BETS not in path.read_text()


def test_a_notebook_that_tells_is_noticed_and_mended_without_executing_it(tmp_path) -> None:
    target = tmp_path / "07_example.ipynb"
    build.nbformat.write(new_notebook(cells=LESSON), target)
    assert [problem.split(": ")[1].split(" ", 1)[1] for problem in build.giveaways(target)] == [
        "tells how a bet above it ends"
    ] * 3
    path = target.with_suffix(".py")
    path.write_text(
        build.jupytext.writes(new_notebook(cells=[new_markdown_cell("New prose."), *LESSON]), fmt="py:percent")
    )
    build.refresh_prose(path)
    mended = build.nbformat.read(target, as_version=4)
    assert build.giveaways(target) == build.drift(target, build.read_source(path), path) == []
    assert mended.cells[6].outputs[0].data["text/plain"] == INSTEAD
    path.write_text(path.read_text() + "\n# %%\nmore = 1\n")
    with pytest.raises(ValueError, match="code has changed"):
        build.refresh_prose(path)


@pytest.mark.parametrize(("moved", "is_refused"), [(QUIET - 0.01, False), (QUIET + 0.01, True)])
def test_a_control_that_moved_too_far_is_refused(tmp_path, moved: float, is_refused: bool) -> None:
    target = tmp_path / "07_example.ipynb"
    build.nbformat.write(new_notebook(cells=[shown("control", "", **{CONTROL_MOVED: moved})]), target)
    assert bool(build.restless(target)) == is_refused


def test_a_lesson_that_says_the_machine_was_busy_is_refused(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "07_example.py"
    marked = 'display({"text/plain": "busy"}, raw=True, metadata={"disturbed": True})'
    path.write_text(f"# %% [markdown]\n# # A lesson\n\n# %%\n{marked}\n")
    monkeypatch.setattr(build, "sources", lambda prefix="": [path])
    monkeypatch.setattr(build.source, "sources", lambda prefix="": [])
    assert build.main([]) == build.main(["--check"]) == 1
    assert capsys.readouterr().err.count("says that the machine was busy") == 2

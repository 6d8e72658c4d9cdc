"""A paragraph about this run is told from its numbers, and the roads not taken lie folded below."""

import pytest

from course.lab import finding
from course.lab.finding import OTHERWISE, tell


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch) -> None:
    (tmp_path / "lesson_99").mkdir()
    (tmp_path / "lesson_99/findings.toml").write_text(
        '[chunks.longer]\nhere = "It took **{wait:seconds}**, {factor:.1f} times as long."\n'
        'otherwise = "Shorter would mean `x < y`."\n'
        '[chunks.shorter]\nhere = "Shorter."\notherwise = ["Longer is usual.", "The same is rare."]\n'
        '[chunks.same]\nhere = "The same."\n'
    )
    monkeypatch.setattr(finding, "HERE", tmp_path)
    finding.texts.cache_clear()


def test_the_outcome_that_was_is_told_and_the_others_are_folded() -> None:
    told = tell("99", "chunks", "longer", wait=0.012, factor=2)
    shown = told._repr_mimebundle_()
    assert shown["text/plain"] == str(told) == "It took **12 ms**, 2.0 times as long."
    before, _, folded = shown["text/html"].partition("<details>")
    assert "<strong>12 ms</strong>" in before and OTHERWISE in folded
    assert "<code>x &lt; y</code>" in folded and "usual" not in folded
    assert tell("99", "chunks", "shorter").otherwise == ("Longer is usual.", "The same is rare.")
    assert tell("99", "chunks", "same").otherwise == ()


def test_without_another_road_nothing_is_folded() -> None:
    assert "<details>" not in finding.Finding("Only this.")._repr_mimebundle_()["text/html"]


def test_an_outcome_or_value_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        tell("99", "chunks", "sideways")
    with pytest.raises(KeyError):
        tell("99", "chunks", "longer", wait=1)

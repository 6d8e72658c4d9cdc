"""A paragraph about this run is told from its numbers, and the roads not taken lie folded below."""

import re
from pathlib import Path

import pytest

from course.lab import finding
from course.lab.claims import read_words
from course.lab.display import stack
from course.lab.finding import OTHERWISE, tell
from course.lab.marks import DISTURBED
from course.lab.style import fill_in

BUSY = re.compile(
    r"(?<!or )(?<!either )something else (kept|keeps|is running|was running|was using|held)|on a quiet machine"
    r"|of the same kind took very different times|much longer than quick ones of the same kind"
    r"|something disturbed this run|don't show what distance does|this machine was slower then than now",
    re.I,
)


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch) -> None:
    (tmp_path / "lesson_99").mkdir()
    (tmp_path / "lesson_99/words.toml").write_text(
        '[findings.chunks.longer]\nhere = "It took **{wait:seconds}**, {factor:.1f} times as long."\n'
        'otherwise = "Shorter would mean `x < y`."\n'
        '[findings.chunks.shorter]\nhere = "Shorter."\notherwise = ["Longer is usual.", "The same is rare."]\n'
        '[findings.chunks.same]\nhere = "The same."\n'
        '[findings.chunks.none]\nis_disturbed = true\nhere = "Something else kept this machine busy."\n'
    )
    monkeypatch.setattr(finding, "LESSONS", tmp_path)
    finding.texts.cache_clear()


def test_the_outcome_that_was_is_told_and_the_others_are_folded() -> None:
    told = tell("99", "chunks", "longer", wait=0.012, factor=2)
    shown, marks = told._repr_mimebundle_()
    assert marks == {} and shown["text/plain"] == str(told) == "It took **12 ms**, 2.0 times as long."
    before, _, folded = shown["text/html"].partition("<details>")
    assert "<strong>12 ms</strong>" in before and OTHERWISE in folded
    assert "<code>x &lt; y</code>" in folded and "usual" not in folded
    assert tell("99", "chunks", "shorter").otherwise == ("Longer is usual.", "The same is rare.")
    assert tell("99", "chunks", "same").otherwise == ()


def test_without_another_road_nothing_is_folded() -> None:
    assert "<details>" not in finding.Finding("Only this.")._repr_mimebundle_()[0]["text/html"]


def test_that_the_machine_was_busy_is_marked_alone_and_in_a_stack() -> None:
    disturbed = tell("99", "chunks", "none")
    for shown in (disturbed, stack(tell("99", "chunks", "same"), disturbed), stack(stack(disturbed))):
        assert shown._repr_mimebundle_()[1] == {DISTURBED: True}
    assert stack(tell("99", "chunks", "same"))._repr_mimebundle_()[1] == {}


@pytest.mark.parametrize("lesson", sorted(finding.LESSONS.glob("lesson_*")), ids=lambda path: path.name)
def test_every_sentence_that_says_so_is_marked(lesson: Path) -> None:
    for name, outcomes in read_words(lesson, "findings").items():
        for outcome, said in outcomes.items():
            assert bool(BUSY.search(said["here"])) == said.get("is_disturbed", False), f"{name}.{outcome}"


def test_an_outcome_or_value_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        tell("99", "chunks", "sideways")
    with pytest.raises(KeyError):
        tell("99", "chunks", "longer", wait=1)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.00949, "9.5 ms"),
        (0.9996, "1 s"),
        (1.32, "1.3 s"),
        (123.4, "120 s"),
        (-0.00064, "−640 µs"),
        (0, "0 s"),
        (None, "–"),
    ],
)
def test_a_sentence_tells_durations_with_two_digits(value: float | None, told: str) -> None:
    assert fill_in("{took:seconds}", took=value) == told

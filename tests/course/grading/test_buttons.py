"""Buttons under an exercise: a hint says its price before it is read; serving shows the run, or what was raised."""

from pathlib import Path

from course.grading.buttons import HintButton, ServeYours
from course.grading.exercises import find
from course.grading.history import History


def test_hints_one_after_the_other_each_at_its_price(tmp_path: Path) -> None:
    exercise, history = find("prefix-hash-chain"), History(tmp_path / "kept.jsonl")
    panel = HintButton(exercise, history)
    for number, hint in enumerate(exercise.hints, 1):
        assert f"Hint {number}" in panel.button.description
        assert f"{hint.cost * exercise.max_score:g} points" in panel.button.description
        panel.open()
        assert history.hints_read(exercise) == number
    assert panel.button.layout.display == "none", "there's none left to buy"
    assert panel.shown.value.count("<p>") == len(exercise.hints)


def test_serving_shows_the_run_or_what_the_learners_code_raised() -> None:
    panel = ServeYours(lambda: "<b>served</b>")
    panel.run()
    assert panel.shown.value == "<b>served</b>" and not panel.button.disabled
    panel = ServeYours(lambda: 1 // 0)
    panel.run()
    assert "ZeroDivisionError" in panel.shown.value and not panel.button.disabled

"""Buttons under an exercise: a hint says its price before it is read; serving shows the run, or what was raised."""

from pathlib import Path

from course.grading import Criterion, Result
from course.grading.buttons import ExerciseCard, HintButton, ServeYours
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


def test_check_grades_what_was_defined_since_and_hints_end_with_the_last_mistake(tmp_path: Path) -> None:
    exercise, points = find("prefix-hash-chain"), [0.0, 1.0]
    panel = ExerciseCard(
        exercise,
        lambda: Result(exercise.id, (Criterion("chain", points.pop(0), 1.0, "so"),)),
        History(tmp_path / "kept.jsonl"),
    )
    check, seen = panel.check, []
    for score, is_offered in ((0, True), (1, False)):
        check.press()
        assert check.button.disabled and check.above.asked == len(seen) + 1
        check.above._handle_custom_msg({"do": "done"}, [])  # the page has run the learner's cells
        seen.append(score)
        assert f"{score} of 1" in check.shown.value and not check.button.disabled
        assert (panel.hint.widget.layout.display != "none") == is_offered
    assert all(name in check.above.pattern for name in exercise.entry_points)

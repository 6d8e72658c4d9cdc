"""Growth is judged by a ratio: a slow or a busy machine costs no right answer a point, and saves no wrong one."""

import ast
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from wrong_answers import wrong_answers

from course.grading import growth
from course.grading.exercise import Mistake
from course.grading.exercises import catalogue, find
from course.grading.growth import MARGIN, TRIES, WorkCost, cost_of, hold_steady
from course.grading.remote import AnswerTime
from course.grading.source import answer_file

SIZES = (10, 100, 1000)
HERE = Path(__file__).parent


def machine(
    speed: float, exponent: float, disturbances: Callable[[], float] = lambda: 1.0
) -> Callable[[int], WorkCost]:
    """Work of 1e-4 * size**(1 + exponent) seconds on a machine of this speed; chance makes each measurement longer."""
    return lambda size: WorkCost(1e-4 * size ** (1 + exponent) / speed * disturbances(), size)


@pytest.mark.parametrize("speed", [10.0, 1.0, 0.1, 0.01])
def test_the_verdict_is_the_same_on_a_slow_machine_and_on_a_busy_one(speed: float) -> None:
    rng = random.Random(0)
    for _ in range(50):
        hold_steady(machine(speed, 0.0, lambda: rng.uniform(1, 2)), SIZES, "grows")
        with pytest.raises(Mistake, match="grows") as raised:
            hold_steady(machine(speed, 1.0, lambda: rng.uniform(1, 2)), SIZES, "grows")
        assert raised.value.fields["times"] > MARGIN


@pytest.mark.parametrize("disturbed", range(1, TRIES + 1))
def test_a_measurement_must_be_bad_three_times_to_cost_a_point(disturbed: int) -> None:
    left = disturbed

    def work(size: int) -> WorkCost:
        nonlocal left
        is_disturbed = size == SIZES[-1] and left > 0
        left -= is_disturbed
        return WorkCost(100.0 if is_disturbed else 1.0, 1)

    if disturbed < TRIES:
        hold_steady(work, SIZES, "grows")
    else:
        with pytest.raises(Mistake):
            hold_steady(work, SIZES, "grows")


def test_what_changes_between_two_measurements_of_the_same_is_noise() -> None:
    turn = iter([1.0, 10.0, 10.0])
    assert growth.times_as_costly(lambda: WorkCost(10.0, 1), lambda: WorkCost(next(turn), 1), limit=4) == 1.0


def test_what_a_clock_cannot_tell_costs_no_point() -> None:
    """A kernel that counts ticks of 10 ms says 0 most of the time."""
    ticks = itertools.cycle([0.0] * 150 + [0.01])
    assert growth.unit_cost(lambda: WorkCost(0.0, 5)) > 0
    hold_steady(lambda size: WorkCost(next(ticks), size), SIZES, "grows")


class SlowClock:
    """The answer's CPU time on a machine of a tenth of the speed."""

    seconds = property(lambda self: 10 * AnswerTime.seconds)


def judged_for_growth() -> list[str]:
    """Exercises whose judges measure."""
    return [each.id for each in catalogue() if {"hold_steady", "times_as_costly"} & vars(each.module).keys()]


FIRST, *OTHERS = judged_for_growth()


@pytest.mark.parametrize("exercise_id", [FIRST, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_right_answers_earn_everything_at_a_tenth_of_the_speed(exercise_id: str, grade, monkeypatch) -> None:
    monkeypatch.setattr(growth, "AnswerTime", SlowClock())
    exercise = find(exercise_id)
    for text in (answer_file(exercise, "solution"), *(p.read_text() for p in HERE.glob(f"right/{exercise_id}/*.py"))):
        assert [each.feedback for each in grade(exercise, text).criteria if each.earned < each.possible] == []


def test_quadratic_answers_are_told_at_a_tenth_of_the_speed(grade, monkeypatch) -> None:
    monkeypatch.setattr(growth, "AnswerTime", SlowClock())
    (copies,) = (each for each in wrong_answers(HERE / "wrong/sse-parser.diff") if each.name == "copies_the_rest")
    *_, work = grade(find("sse-parser"), copies.text()).criteria
    assert work.earned == 0 and "copied for each line" in work.feedback


def test_a_cost_is_the_answers_own_cpu_time(grade) -> None:
    """The CPU time is the answer's process's, not the judge's: what the judge does meanwhile is not charged."""
    began = AnswerTime.seconds
    assert cost_of(lambda: sum(range(10**6)), 1).seconds == 0 == AnswerTime.seconds - began


@pytest.mark.parametrize("exercise", catalogue(), ids=lambda exercise: exercise.id)
def test_no_judge_has_a_clock_of_its_own(exercise) -> None:
    tree = ast.parse(Path(str(exercise.module.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not {name.name for node in imports for name in node.names} & {"time", "timeit", "AnswerTime"}

"""What every exercise promises: stubs fail with a helpful word, right answers of any style earn everything, and each
plausible wrong answer (wrong/ID.diff; in `make test` one of each exercise) loses points and is told why."""

from pathlib import Path

import pytest
from wrong_answers import WrongAnswer, patched, wrong_answers

from course.grading.exercise import Exercise
from course.grading.exercises import catalogue
from course.grading.runner import Graded
from course.grading.source import answer_file, cells, path_of, resolve, statement

HERE = Path(__file__).parent
EXERCISES = catalogue()
BY_ID = {exercise.id: exercise for exercise in EXERCISES}
WRONG = [
    (wrong, place != turn % len(answers))
    for turn, answers in enumerate(map(wrong_answers, sorted(HERE.glob("wrong/*.diff"))))
    for place, wrong in enumerate(answers)
]
"""Each with whether it's for `make slow` only: in `make test` one of each exercise is handed in."""
RIGHT = sorted(HERE.glob("right/*/*.py"))
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
"""A judge has as many questions as there are seeds: `make slow` asks more of them, of what must be found right."""

GARBAGE = {
    "None": "{name} = None",
    "a string": "{name} = 'tea'",
    "gives None": "def {name}(*args): return None",
    "gives itself": "def {name}(*args): return {name}",
    "gives nan": "def {name}(*args): return float('nan')",
    "gives a string": "def {name}(*args): return 'tea'",
    "gives nested lists": "def {name}(*args): return [[1], [2, [3]], None]",
    "gives a huge number": "def {name}(*args): return 10 ** 400",
    "gives a broken array": "import numpy as np\ndef {name}(*args): return np.ones((2, 3, 4))",
    "gives a set": "def {name}(*args): return {{1, 2}}",
    "gives endlessly": "import itertools\ndef {name}(*args): return itertools.count()",
    "raises": "def {name}(*args): raise RuntimeError('no')",
    "raises something odd": "class E(BaseException):\n    def __str__(self): 1 / 0\ndef {name}(*args): raise E",
    "calls itself": "def {name}(*args): return {name}(*args)",
    "exits": "import sys\ndef {name}(*args): sys.exit(1)",
    "prints a lot": "def {name}(*args): print('tea' * 10_000)",
    "takes nothing": "def {name}(): return 1",
    "breaks comparison": "class C:\n    def __eq__(self, other): 1 / 0\n    __hash__ = None\n    __repr__ = __eq__\n"
    "def {name}(*args): return C()",
    "empties its inputs": "def {name}(*args):\n    for a in args:\n        getattr(a, 'clear', int)()\n    return 1",
}

GARBAGE_TURNS = 6
"""In `make test` each exercise is handed a sixth of these, another sixth than the one before; all in `make slow`."""


def words_of(graded: Graded) -> str:
    return "\n".join(criterion.feedback for criterion in graded.criteria if criterion.earned < criterion.possible)


def earned(graded: Graded) -> float:
    return sum(criterion.earned for criterion in graded.criteria)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_stub_earns_nothing_and_says_what_to_do(exercise: Exercise, grade) -> None:
    graded = grade(exercise, answer_file(exercise, "stub"))
    assert earned(graded) == 0
    assert "not written yet" in words_of(graded)


@SEEDS
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_solution_earns_everything_whatever_the_seed(exercise: Exercise, seed: int, grade) -> None:
    graded = grade(exercise, answer_file(exercise, "solution"), seed)
    assert earned(graded) == exercise.max_score, words_of(graded)


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (18, 20, 865925))])
def test_chance_fails_no_right_sampler(seed: int, grade) -> None:
    """Seeds at which few rounds reached the bonus token, and its shares were judged as those of many."""
    exercise = BY_ID["rejection-sampler"]
    assert earned(grade(exercise, answer_file(exercise, "solution"), seed)) == exercise.max_score


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_another_style_earns_everything(path: Path, grade) -> None:
    exercise = BY_ID[path.parent.name]
    graded = grade(exercise, path.read_text(), seed=1)
    assert earned(graded) == exercise.max_score, words_of(graded)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(wrong, marks=[pytest.mark.slow] * is_slow, id=f"{wrong.exercise_id}/{wrong.name}")
        for wrong, is_slow in WRONG
    ],
)
def test_a_wrong_answer_is_told_its_mistake(wrong: WrongAnswer, grade) -> None:
    exercise = BY_ID[wrong.exercise_id]
    graded = grade(exercise, wrong.text())
    assert earned(graded) < exercise.max_score
    assert wrong.words.lower() in words_of(graded).lower()
    assert not any(own in words_of(graded) for own in ("Mistake", "StopIteration"))  # the judges' own


@pytest.mark.parametrize(("patch", "words"), [("-y = 1", "0 times"), ("-x = 1", "2 times"), ("x = 1", "begins")])
def test_a_patch_that_does_not_fit_is_refused(patch: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        patched("x = 1\nx = 1\ny = 2\n", patch)


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, GARBAGE_TURNS))])
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_garbage_loses_points_and_never_raises(exercise: Exercise, turn: int, grade) -> None:
    first = (EXERCISES.index(exercise) + turn) % GARBAGE_TURNS
    for kind, template in [*GARBAGE.items()][first::GARBAGE_TURNS]:
        text = "\n".join(template.format(name=name) for name in exercise.entry_points)
        graded = grade(exercise, text)
        assert earned(graded) < exercise.max_score / 2, kind
        assert all(criterion.feedback for criterion in graded.criteria), kind
        assert not any(own in words_of(graded) for own in ("Mistake", "StopIteration")), kind
    assert earned(grade(exercise, "")) == 0


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_it_is_complete(exercise: Exercise) -> None:
    assert len([wrong for wrong, _ in WRONG if wrong.exercise_id == exercise.id]) >= 3
    assert [path for path in RIGHT if path.parent.name == exercise.id]
    assert 2 <= len(exercise.hints) <= 3
    assert all(0 < hint.cost <= 0.2 for hint in exercise.hints)
    assert exercise.difficulty in (1, 2, 3)
    # The heading of the statement repeats the facts, so that they stand in the notebook.
    facts = f"{exercise.id} · lesson {exercise.lesson:02d} · {exercise.level} · {exercise.minutes} minutes · "
    assert f"{facts}{exercise.max_score:g} points" in statement(exercise)
    for name in exercise.entry_points:
        assert name in statement(exercise)
    source = list(cells(resolve(path_of(exercise).read_text(encoding="utf-8"), "solution")))
    own = next(i for i, cell in enumerate(source) if cell.role == "exercise" and cell.exercise_id == exercise.id)
    assert any("worked example" in cell.body for cell in source[own:] if cell.is_text)

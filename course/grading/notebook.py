"""check(...) and hint(...) in notebooks: `from course.lab import check, hint`."""

from html import escape
from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from course.grading import Criterion, Result, WrongAnswerError
from course.grading.attempt import fresh_seed, graded, is_strict, next_hint
from course.grading.buttons import ExerciseCard
from course.grading.exercises import UnknownExerciseError, find
from course.grading.history import History
from course.grading.ship import CannotShipError, pack
from course.lab.display import Html
from course.lab.json_store import notebook


def check(exercise_id: str, *answers: Any, seed: int | None = None, strict: bool | None = None) -> Result:
    """Grade an answer: `check("block-pool", BlockPool)`. Never raises, unless strict.

    Args:
        answers: the functions or classes that the exercise asks for.
        seed: the same seed asks the same questions; None = a fresh one, which is shown.
        strict: raise WrongAnswerError unless everything is right; None = as the environment says (attempt.py).
    """
    result = _result(exercise_id, answers, fresh_seed() if seed is None else seed)
    if result.score < result.max_score:
        if is_strict() if strict is None else strict:
            raise WrongAnswerError(str(result))
        _offer_more(exercise_id)
    return result


def _offer_more(exercise_id: str) -> None:
    """Buttons under the check's result, in a notebook in use."""
    try:
        exercise = find(exercise_id)
    except UnknownExerciseError:
        return
    if not notebook():
        return
    shell = InteractiveShell.instance()

    def check_again() -> Result:
        answers = tuple(shell.user_ns.get(name) for name in exercise.entry_points)
        return _result(exercise_id, answers, fresh_seed())

    def show(_: object) -> None:
        shell.events.unregister("post_run_cell", show)
        display(ExerciseCard(exercise, check_again, History()))

    shell.events.register("post_run_cell", show)  # what a cell ends with is shown before that


def hint(exercise_id: str, number: int | None = None) -> Html:
    """The next hint of an exercise. Each costs the points it names; reading one again costs nothing.

    Args:
        number: which one, from 1; None = the next one, or the last when all were read.
    """
    try:
        words = next_hint(find(exercise_id), number, None if is_strict() else History())
    except UnknownExerciseError as error:
        words = str(error)
    return Html(f'<p style="white-space:pre-wrap">{escape(words)}</p>', words)


def _result(exercise_id: str, answers: tuple[Any, ...], seed: int) -> Result:
    try:
        exercise = find(exercise_id)
    except UnknownExerciseError as error:
        return Result(str(exercise_id), (Criterion("exercise", 0.0, 1.0, str(error)),))
    if all(answer is None or answer is ... for answer in answers):
        call = f"check({exercise.id!r}, {', '.join(exercise.entry_points)})"
        return Result(exercise.id, exercise.ungraded(f"not answered yet: {call}"))
    try:
        submission = pack(exercise, answers)
    except CannotShipError as error:
        return Result(exercise.id, exercise.ungraded(str(error)))
    return graded(exercise, submission, seed, None if is_strict() else History())


ADVICE = {
    NameError: "\nThis check comes before its answer: run the cell above it, with your code, first.",
    TypeError: "\nA check wants the function or class itself, without brackets: check('block-pool', BlockPool).",
}


def advise(shell: InteractiveShell) -> None:
    """From now on, an error in a cell with a check is followed by what is likely meant."""

    def told(
        self: InteractiveShell, kind: type[Exception], error: Exception, where: TracebackType, tb_offset: Any = None
    ) -> None:
        self.showtraceback((kind, error, where), tb_offset=tb_offset)
        if "check(" in self.history_manager.input_hist_raw[-1] and where.tb_next and not where.tb_next.tb_next:
            print(ADVICE[kind])

    shell.set_custom_exc(tuple(ADVICE), told)


if InteractiveShell.initialized():
    advise(InteractiveShell.instance())

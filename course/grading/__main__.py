"""python -m course.grading: the exercises without a notebook. With --json, standard output is JSON only."""

import json
import sys
from collections.abc import Mapping, Sequence
from csv import writer
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from course.grading.attempt import fresh_seed, graded, next_hint
from course.grading.exercise import Exercise
from course.grading.exercises import UnknownExerciseError, catalogue, find
from course.grading.handed_in import HandedInError, answer_text
from course.grading.history import History
from course.grading.runner import Submission
from course.grading.source import SourceError, answer_file
from course.terminal import fitted
from minillm.frontend.terminal import safe_text

app = typer.Typer(
    help="Exercises: read the stub, write your answer into a file, check it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Id = Annotated[str, typer.Argument(metavar="EXERCISE_ID", help="As `list` shows it, such as block-pool.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


@app.command("list")
def list_exercises(as_json: Json = False) -> None:
    """All exercises, in the order of the lessons."""
    if as_json:
        print(json.dumps([facts(exercise) for exercise in catalogue()], indent=2))
        return
    for each in catalogue():
        print(f"{each.lesson:02d}  {each.level}  {each.minutes:3d} min  {each.id:28} {each.title}")


@app.command()
def check(
    exercise_id: Id,
    answer: Annotated[
        Path, typer.Argument(metavar="ANSWER.py", help="Your file, or the notebook that you answered it in.")
    ],
    seed: Annotated[int | None, typer.Option(help="Ask this seed's questions again.")] = None,
    strict: Annotated[bool, typer.Option(help="Exit status 1 unless everything is right.")] = False,
    save: Annotated[bool, typer.Option(help="Record the attempt in your history.")] = True,
    as_json: Json = False,
) -> None:
    """Grade a file in a process of its own, with a time limit."""
    exercise = the(exercise_id)
    seed = fresh_seed() if seed is None else seed
    result = graded(exercise, read_answer(answer, exercise), seed, History() if save else None, "--seed ")
    if as_json:
        print(json.dumps(result.as_dict()))
        print("\n".join(result.notes), file=sys.stderr)
    else:
        print(result)
    raise typer.Exit(int(strict and result.score < result.max_score))


@app.command()
def stub(exercise_id: Id) -> None:
    """Print the starter: the statement, and what you fill in."""
    print(from_source(the(exercise_id), "stub"), end="")


@app.command()
def solution(exercise_id: Id) -> None:
    """Print the model answer."""
    print(from_source(the(exercise_id), "solution"), end="")


@app.command()
def hint(
    exercise_id: Id, number: Annotated[int | None, typer.Argument(help="Which one; without it, the next.")] = None
) -> None:
    """Print a hint. It costs the points that it names."""
    print(next_hint(the(exercise_id), number, History()))


@app.command()
def summary(as_json: Json = False) -> None:
    """How far you are. With --json, every attempt as well: for a teacher to grade a class from. An exercise that this
    machine cannot do, and that was not done on another one, has no part in the sum.
    """
    history = History()
    rows = [(exercise, history.standing(exercise)) for exercise in catalogue()]
    elsewhere = {exercise.id for exercise, found in rows if exercise.missing is not None and not found.attempts}
    total = {
        "score": sum(standing.best for _, standing in rows),
        "max_score": sum(exercise.max_score for exercise, _ in rows if exercise.id not in elsewhere),
    }
    if as_json:
        exercises = [{**facts(exercise), **asdict(standing)} for exercise, standing in rows]
        print(json.dumps({**total, "exercises": exercises, "events": list(history.events())}, indent=2))
        return
    for exercise, found in rows:
        tried = f"{found.attempts} tried, {found.hints} hints" if found.attempts or found.hints else "not tried yet"
        tried = "not on this machine" if exercise.id in elsewhere else tried
        print(f"{exercise.lesson:02d}  {exercise.id:28} {found.best:5g} of {found.max_score:2g}   {tried}")
    print(f"{'':32} {total['score']:5g} of {total['max_score']:2g}   {history.path}")


@app.command()
def export(
    name: Annotated[str, typer.Option(help="Yours, as the teacher knows it.")],
    out: Annotated[Path | None, typer.Option(help="Write it here; without it, to standard output.")] = None,
) -> None:
    """All that is kept of your work on this machine, as JSON: lessons, checks, exercises, drills."""
    from course.grading import classroom  # pandas and the drills: only these commands need them

    if not name.strip():
        fail("--name is empty: it's the row of yours in the class's table")
    try:
        text = classroom.export(name).model_dump_json(indent=2)
    except OSError as error:
        fail(f"what is kept on this machine cannot be read: {error}")
    if out is None:
        print(text)
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror or error}")


@app.command("class")
def class_table(
    files: Annotated[list[Path], typer.Argument(metavar="EXPORT.json ...", help="What learners exported.")],
    csv: Annotated[Path | None, typer.Option(help="Write the table of learners here as well.")] = None,
    as_json: Json = False,
) -> None:
    """Tables of a class, from its exports: who is where, and which exercise to talk about."""
    from course.grading import classroom

    try:
        learners = [classroom.read(path) for path in files]
        text = classroom.as_json(learners) if as_json else classroom.as_text(learners)
        if csv is not None:
            classroom.by_learner(learners).to_csv(csv)
    except (classroom.ExportError, OSError) as error:
        fail(str(error))
    print(text)


@app.command()
def rerun(
    exercise_id: Id,
    answers: Annotated[list[Path], typer.Argument(metavar="ANSWER ...", help="Files or notebooks handed in.")],
    seed: Annotated[int, typer.Option(help="Yours: everyone gets the same questions.")],
    csv: Annotated[Path | None, typer.Option(help="Write the table here as well.")] = None,
    as_json: Json = False,
) -> None:
    """Grade what a class handed in, on this machine and with your seed: a row for each file. Nothing is kept."""
    from course.grading import classroom

    exercise, rows = the(exercise_id), []
    table = None if csv is None else new_table(csv, [field.name for field in fields(classroom.Rerun)])
    for each in classroom.rerun(exercise, answers, seed):
        rows.append(asdict(each))
        if table is not None:
            table.add(rows[-1])
        if not as_json:
            points = "not read" if each.points is None else f"{each.points:g} of {each.possible:g}"
            row = safe_text(f"{each.file}  {points:>8}  {each.first_mistake}".rstrip(), sys.stdout)
            print(fitted(row, sys.stdout), flush=True)
    if as_json:
        print(json.dumps({"exercise": exercise.id, "seed": seed, "answers": rows}, indent=2))


@dataclass(frozen=True)
class CsvTable:
    """A CSV file that has each row as soon as it's known: a class takes minutes to grade, and may be interrupted."""

    path: Path
    columns: Sequence[str]

    def add(self, row: Mapping[str, Any]) -> None:
        self._write("a", row)

    def begin(self) -> None:
        """Empty, but for the columns' names."""
        self._write("w", dict(zip(self.columns, self.columns)))

    def _write(self, mode: str, row: Mapping[str, Any]) -> None:
        try:
            with self.path.open(mode, encoding="utf-8", newline="") as file:
                writer(file, lineterminator="\n").writerow([row[name] for name in self.columns])
        except OSError as error:
            fail(f"cannot write {self.path}: {error.strerror or error}")


def new_table(path: Path, columns: Sequence[str]) -> CsvTable:
    """It's begun before anything is graded, so that a path that can't be written is told right away."""
    table = CsvTable(path, columns)
    table.begin()
    return table


def facts(exercise: Exercise) -> dict[str, Any]:
    """What one may know of an exercise before doing it."""
    plain = ("id", "title", "lesson", "difficulty", "minutes", "entry_points", "max_score")
    return {**{name: getattr(exercise, name) for name in plain}, "hints": len(exercise.hints)}


def the(exercise_id: str) -> Exercise:
    """The exercise, or the end of the program."""
    try:
        return find(exercise_id)
    except UnknownExerciseError as error:
        fail(str(error))


def read_answer(path: Path, exercise: Exercise) -> Submission:
    """What a learner hands in, or the end of the program."""
    try:
        return Submission.of_text(answer_text(path, exercise), str(path))
    except (HandedInError, OSError) as error:
        fail(str(error))


def from_source(exercise: Exercise, variant: Any) -> str:
    try:
        return answer_file(exercise, variant)
    except (SourceError, OSError) as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    app(prog_name="python -m course.grading")

"""`minillm drill`: the drills in a terminal, or step by step from a script with --json."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from course.drills.attempts import FILE, attempt_of
from course.drills.attempts import keep as keep_attempt
from course.drills.checks import verified
from course.drills.clock import written
from course.drills.drill import Commit
from course.drills.library import ALL, find_drill
from course.drills.mock import MINUTES, debrief, plan
from course.drills.report import advice, report, summary
from course.drills.sitting import Sitting, off_text, solution_text
from course.drills.stages import Terminal, stages
from course.drills.stated import menu
from minillm.core.errors import MinillmError
from minillm.frontend.terminal import fitted

app = typer.Typer(
    help="Timed interview drills: a prompt, your answer, what can be computed from it, and your own calibrated grade.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Which numbers; 0 is the classic.")]
Id = Annotated[str, typer.Argument(metavar="DRILL_ID", help="As `minillm drill list` names it.")]
Keep = Annotated[bool, typer.Option(help="Keep the answer on this machine, for history and trend.")]
EMPTY = "the answer is empty, so there's nothing to grade, and nothing is kept"


class AnswerFileError(MinillmError):
    """The answer cannot be read, or a sheet of grades cannot."""


def _print(as_json: bool, found: dict[str, Any], *lines: object) -> None:
    """The one for programs, or the others for people."""
    print(json.dumps(found) if as_json else fitted("\n".join(map(str, lines)), sys.stdout))


@app.command("list")
def list_drills(as_json: Json = False) -> None:
    """All drills: id, minutes, title, what is practised."""
    tried = {each.drill: each.points for each in FILE.read().done}
    rows = [
        {"id": d.id, "title": d.title, "minutes": d.minutes, "practises": d.phases, "last": tried.get(d.id)}
        for d in ALL
    ]
    last = {name: f"  [{points:.0%}]" for name, points in tried.items()}
    told = [f"{d.id:18} {d.minutes:3d} min  {d.title}  ({d.phases}){last.get(d.id, '')}" for d in ALL]
    _print(as_json, {"drills": rows}, *told)


@app.command()
def show(drill_id: Id, seed: Seed = 0, as_json: Json = False) -> None:
    """The prompt, and what to commit to. Model answers are shown after grading only."""
    drill = find_drill(drill_id)
    drawn = drill.drawn(seed)
    asks, causes = drawn.rubric.commit.number.asks, menu("causes")
    fields = {"id": drill.id, "title": drill.title, "minutes": drill.minutes, "practises": drill.phases, "seed": seed}
    given = {name: {"value": a.value, "unit": a.unit} for name, a in drawn.numbers.given.items()}
    commit = {"dominant": causes, "second": causes, "number": asks, "fixes": menu("techniques")}
    criteria = {each.key: each.asks for each in drawn.rubric.criteria}
    _print(
        as_json,
        {**fields, "prompt": drawn.prompt, "given": given, "commit": commit, "criteria": criteria},
        f"{drill.title} ({drill.minutes} minutes)\n\n{drawn.prompt}\n",
        f"Commit to what dominates, the second problem, up to three fixes, and a number: {asks}",
        f"Graded: {', '.join(each.name for each in drawn.rubric.criteria)}.",
    )


@app.command()
def grade(
    drill_id: Id,
    answer: Annotated[
        str | None, typer.Option(help="File with the answer; - is standard input. Otherwise you're asked for it.")
    ] = None,
    dominant: Annotated[str, typer.Option(help="The phase or cause that dominates, by id.")] = "",
    second: Annotated[str, typer.Option(help="The second problem, by id.")] = "",
    number: Annotated[str, typer.Option(help="The number that the drill asks for, with its unit.")] = "",
    fix: Annotated[list[str] | None, typer.Option(help="A fix, by id; up to three, best first.")] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(help='JSON: {"samples": {"A": {"diagnosis": "weak"}}, "own": {"diagnosis": ["strong", "quote"]}}'),
    ] = None,
    seed: Seed = 0,
    keep: Keep = True,
    judge_url: Annotated[
        str | None, typer.Option(help="An OpenAI API for a judge model, such as that of `minillm serve`.")
    ] = None,
    judge_model: Annotated[str, typer.Option(help="The model to ask there.")] = "default",
    as_json: Json = False,
) -> None:
    """Grade an answer by criterion, with evidence; then the model answers. A terminal asks for what is missing."""
    sitting = Sitting(find_drill(drill_id).drawn(seed))
    sitting.commit = verified(Commit(dominant=dominant, second=second, number=number, fixes=tuple(fix or ())))
    terminal = Terminal(is_quiet=as_json)
    if sheet is not None:
        _fill_in(sitting, sheet)
    if answer is None:
        terminal.write(sitting)
    else:
        sitting.text = _read(answer)
    if not sitting.text.strip():
        raise AnswerFileError(EMPTY)
    if answer is None or (sheet is None and not as_json and answer != "-" and sys.stdin.isatty()):
        terminal.go_through(stages(sitting))
    if judge_url:
        from course.drills.judge import ask  # an HTTP client takes long to import, and few ask for a judge

        sitting.opinions = ask(sitting.drill, sitting.text, judge_url, judge_model)
    if keep:
        keep_attempt(attempt_of(sitting))
    drill = sitting.drill
    solved = {"impossible": drill.impossible, "must_say": drill.rubric.must_say, "model_answers": drill.model_answers}
    asked = [f"The interviewer asks: {each}" for each in sitting.follow_ups]
    told = (sitting, *asked, f"\n{off_text(sitting.calibration)}\n", solution_text(drill), f"\n{sitting.computed}")
    _print(as_json, {**sitting.to_dict(), **solved}, *told)


@app.command()
def mock(seed: Seed = 0, keep: Keep = True, as_json: Json = False) -> None:
    """A mock interview of 45 minutes: the dump, two short drills, pushback, debrief. Speak aloud, and write notes."""
    terminal, rounds, began = Terminal(is_quiet=as_json), [], time.monotonic()
    for place, drawn in enumerate(plan(seed)):
        left = max(60 * MINUTES - (time.monotonic() - began), 0)
        terminal.say(f"\nRound {place + 1}: {written(left)} left in all.\n")
        sitting = Sitting(drawn)
        terminal.write(sitting)
        if not sitting.text.strip():
            terminal.say(f"Passed over: {EMPTY}.")
            continue
        terminal.go_through(stages(sitting, is_graded=place == 0))
        rounds.append(sitting)
        if keep:
            keep_attempt(attempt_of(sitting))
    told = debrief(rounds)
    shown = [f"{part}\n" for part in (*rounds, told, *(solution_text(each.drill) for each in rounds))]
    _print(as_json, {"rounds": [each.to_dict() for each in rounds], "debrief": told}, *shown)


@app.command()
def history(
    html: Annotated[Path | None, typer.Option(help="Write a page to print here.")] = None, as_json: Json = False
) -> None:
    """Your attempts, the trend, and what to practise next."""
    done = FILE.read().done
    if html is not None:
        try:
            html.write_text(report(done), encoding="utf-8")
        except OSError as error:
            raise AnswerFileError(f"cannot write {html}: {error}") from None
    told = [f"{each.when}  {each.drill:18} {each.points:.0%}  {each.level}" for each in done]
    told += [f"{name:26} {level:8} {change}" for name, level, change in summary(done)]
    attempts = [each.model_dump() for each in done]
    _print(as_json, {"attempts": attempts, "summary": summary(done), "advice": advice(done)}, *told, advice(done))


def _read(answer: str) -> str:
    """The text of an answer. Bytes that are no UTF-8 are replaced: a garbled one is graded by what is left of it.

    Raises:
        AnswerFileError: it cannot be read.
    """
    try:
        raw = sys.stdin.buffer.read() if answer == "-" else Path(answer).read_bytes()
    except OSError as error:
        raise AnswerFileError(f"cannot read the answer: {error}") from None
    return raw.decode("utf-8-sig", errors="replace")


def _fill_in(sitting: Sitting, sheet: Path) -> None:
    """Grades of the samples, and of the answer, from a file. Raises AnswerFileError or GradesError."""
    try:
        content: dict[str, Any] = json.loads(sheet.read_bytes())
        sitting.samples = {str(label): dict(grades) for label, grades in content.get("samples", {}).items()}
        sitting.own_written = {key: (str(level), str(quote)) for key, (level, quote) in content.get("own", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AnswerFileError(f"cannot read the grades in {sheet}: {error}") from None
    sitting.calibration, sitting.own  # noqa: B018 - both raise for a criterion or level that there isn't

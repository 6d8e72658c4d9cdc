"""`minillm drill`: the drills in a terminal, or step by step from a script with --json."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from course.lab.drills.attempts import FILE, attempt_of
from course.lab.drills.attempts import keep as keep_attempt
from course.lab.drills.drill import DIMENSIONS, LEVELS
from course.lab.drills.grade import grade as grade_answer
from course.lab.drills.library import ALL, find_drill
from course.lab.drills.report import advice, report, summary
from minillm.core.errors import MinillmError

app = typer.Typer(
    help="Timed interview drills: a prompt, your answer, and a score that quotes the words it goes by.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Which numbers; 0 is the classic.")]
Id = Annotated[str, typer.Argument(metavar="DRILL_ID", help="As `minillm drill list` names it.")]


class AnswerFileError(MinillmError):
    """The answer cannot be read, or the self-score cannot."""


@app.command("list")
def list_drills(as_json: Json = False) -> None:
    """All drills: id, minutes, title, what is practised."""
    tried = {each.drill: each.level for each in FILE.read().done}
    rows = [
        {"id": d.id, "title": d.title, "minutes": d.minutes, "practises": d.phases, "last": tried.get(d.id)}
        for d in ALL
    ]
    if as_json:
        print(json.dumps({"drills": rows}))
        return
    for row in rows:
        last = f"  [{row['last']}]" if row["last"] else ""
        print(f"{row['id']:18} {row['minutes']:3d} min  {row['title']}  ({row['practises']}){last}")


@app.command()
def show(drill_id: Id, seed: Seed = 0, as_json: Json = False) -> None:
    """The prompt. Model answers are shown after grading only."""
    drill = find_drill(drill_id)
    drawn = drill.drawn(seed)
    dimensions = {k: name for k, name in DIMENSIONS.items() if k != "secondary" or drill.rubric.secondary}
    if as_json:
        fields = {"id": drill.id, "title": drill.title, "minutes": drill.minutes, "practises": drill.phases}
        given = {name: {"value": a.value, "unit": a.unit} for name, a in drawn.numbers.given.items()}
        print(json.dumps({**fields, "seed": seed, "prompt": drawn.prompt, "given": given, "dimensions": dimensions}))
        return
    print(f"{drill.title} ({drill.minutes} minutes)\n\n{drawn.prompt}\n")
    print(f"Scored: {', '.join(dimensions.values())}.")


@app.command()
def grade(
    drill_id: Id,
    answer: Annotated[str, typer.Option(help="File with the answer; - is standard input.")],
    self_score: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIMENSION=LEVEL", help="Your own score, e.g. diagnosis=strong; may be repeated, or a list."
        ),
    ] = None,
    seed: Seed = 0,
    keep: Annotated[bool, typer.Option(help="Keep the answer on this machine, for history and trend.")] = True,
    judge_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible API, for a second opinion.")] = None,
    judge_model: Annotated[str, typer.Option(help="The model to ask there.")] = "default",
    as_json: Json = False,
) -> None:
    """Score an answer: level, evidence and advice by dimension; then the model answers."""
    drawn = find_drill(drill_id).drawn(seed)
    text, own = _read(answer), _self_scores(self_score or [])
    graded = grade_answer(drawn, text)
    if keep:
        keep_attempt(attempt_of(graded, text, own))
    opinion = None
    if judge_url:
        from course.lab.drills.judge import ask  # an HTTP client takes long to import, and few ask for a judge

        opinion = ask(drawn, text, judge_url, judge_model)
    if as_json:
        report_of = {**graded.to_dict(own), "impossible": drawn.impossible, "model_answers": drawn.answers}
        print(json.dumps({**report_of, "judge": opinion and opinion.to_dict()}))
        return
    print(graded)
    for key, level in own.items():
        print(f"You scored {DIMENSIONS[key]}: {level}")
    if opinion is not None:
        print(opinion)
    print(f"\nWhat the prompt's own numbers imply\n{drawn.impossible}")
    for level, words in drawn.answers.items():
        print(f"\nA {level} answer\n{words}")


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
    if as_json:
        print(
            json.dumps(
                {"attempts": [each.model_dump() for each in done], "summary": summary(done), "advice": advice(done)}
            )
        )
        return
    for each in done:
        print(f"{each.when}  {each.drill:18} {each.level} ({each.points:.0%})")
    for name, level, change in summary(done):
        print(f"{name:26} {level:8} {change}")
    print(advice(done))


def _read(answer: str) -> str:
    """The text of an answer. Bytes that are no UTF-8 are replaced: a garbled one is graded by what is left of it.

    Raises:
        AnswerFileError: it cannot be read, or is empty.
    """
    try:
        raw = sys.stdin.buffer.read() if answer == "-" else Path(answer).read_bytes()
    except OSError as error:
        raise AnswerFileError(f"cannot read the answer: {error}") from None
    if not (text := raw.decode("utf-8", errors="replace")).strip():
        raise AnswerFileError("the answer is empty, so there's nothing to grade, and nothing is kept")
    return text


def _self_scores(written: list[str]) -> dict[str, str]:
    """`diagnosis=strong,evidence=weak` as a dict. Raises AnswerFileError, which says what there is."""
    scores = {}
    for part in (part.strip() for each in written for part in each.split(",")):
        key, _, level = part.partition("=")
        if key not in DIMENSIONS or level not in LEVELS:
            raise AnswerFileError(
                f"--self-score {part!r}: write DIMENSION=LEVEL, of {', '.join(DIMENSIONS)} and {', '.join(LEVELS)}"
            )
        scores[key] = level
    return scores

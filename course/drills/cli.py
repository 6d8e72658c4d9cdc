"""`minillm drill`: the drills in a terminal, or step by step from a script with --json."""

import json
import sys
import time
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from course.drills.amounts import UNITS
from course.drills.attempts import FILE, attempt_of
from course.drills.attempts import keep as keep_attempt
from course.drills.clock import written
from course.drills.drill import Commit, Drill
from course.drills.library import ALL, find_drill, number_of
from course.drills.mock import MINUTES, debrief, plan
from course.drills.report import advice, report, summary
from course.drills.sitting import Sitting, off_text, sit, solution_text
from course.drills.stages import Terminal, stages
from course.drills.stated import menu
from course.drills.statements import RULE
from course.drills.talk import talk_of
from course.terminal import fitted
from minillm.core.errors import MinillmError

app = typer.Typer(
    help="Timed interview drills: a prompt, your answer, commitments, pushback, statements to judge, and a verdict.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Which numbers to draw; 0 = the classic ones.")]
Id = Annotated[str, typer.Argument(metavar="DRILL", help="Its number in `minillm drill list`, or its id.")]
Perhaps = Annotated[str | None, typer.Argument(metavar="DRILL", help="Its number or id; without one, the list.")]
Keep = Annotated[bool, typer.Option(help="Keep the answer on this machine, for history and trend.")]
BEGINNING = 100
"""Characters of a prompt that the list shows."""
EMPTY = "the answer is empty, so there's nothing to grade, and nothing is kept"


class AnswerFileError(MinillmError):
    """The answer cannot be read, or what goes with it cannot."""


def _print(as_json: bool, found: dict[str, Any], *lines: object) -> None:
    """The one for programs, or the others for people."""
    print(json.dumps(found) if as_json else fitted("\n".join(map(str, lines)), sys.stdout))


@app.command("list")
def list_drills(as_json: Json = False) -> None:
    """All drills: number, minutes, how each begins. Title, topic and source are shown for those you have sat."""
    sat = {each.drill: each for each in FILE.read().done}
    rows = [{"number": n, "id": d.id, "minutes": d.minutes, "begins": _begins(d)} for n, d in enumerate(ALL, 1)]
    for row, drill in zip(rows, ALL):
        if drill.id in sat:
            row |= {"tags": drill.tags, "last": sat[drill.id].headline or f"{sat[drill.id].points:.0%}"}
    told = [f"{row['number']:3} {row['minutes']:3d} min  {row.get('tags', row['begins'])}" for row in rows]
    _print(as_json, {"drills": rows}, *told)


def _begins(drill: Drill) -> str:
    """The first words of its classic prompt."""
    return shorten(drill.drawn().opening, BEGINNING, placeholder=" ...")


@app.command()
def show(drill_id: Perhaps = None, seed: Seed = 0, as_json: Json = False) -> None:
    """The prompt, what to commit to, and what you may ask; without a DRILL, the list. Topic and model answers are shown
    after grading only."""
    if drill_id is None:
        list_drills(as_json)
        return
    drill = find_drill(drill_id)
    drawn = drill.drawn(seed)
    asks, causes = drawn.rubric.commit.number.asks, menu("causes")
    facts = {each.key: each.asks for each in talk_of(drawn).facts}
    fields = {"number": number_of(drill), "id": drill.id, "minutes": drill.minutes, "seed": seed}
    given = {name: {"value": a.value, "unit": a.unit} for name, a in drawn.numbers.given.items()}
    commit = {"dominant": causes, "second": causes, "number": asks, "unit": list(UNITS), "fixes": menu("techniques")}
    commit |= {"finding": facts, "then": menu("techniques")}
    criteria = {each.key: each.asks for each in drawn.rubric.criteria}
    _print(
        as_json,
        {**fields, "prompt": drawn.prompt, "given": given, "commit": commit, "questions": facts, "criteria": criteria},
        f"Drill {number_of(drill)} ({drill.minutes} minutes)\n\n{drawn.prompt}\n",
        f"Commit to what dominates, the second problem, up to three fixes, and a number: {asks}",
        *(["And to a finding that would change your mind, and what you'd put first then."] if facts else []),
        *(f"You may ask: {each} [{key}]" for key, each in facts.items()),
    )


@app.command()
def statements(drill_id: Id, seed: Seed = 0, as_json: Json = False) -> None:
    """The statements that are put on the table after your answer. Read them only when you have written it."""
    put = talk_of(find_drill(drill_id).drawn(seed)).put()
    told = [RULE, *(f"{place}. {each.says}" for place, each in enumerate(put, 1))]
    _print(as_json, {"statements": [each.says for each in put]}, *(told if put else ["This drill has none."]))


@app.command()
def grade(
    drill_id: Id,
    answer: Annotated[
        str | None, typer.Option(help="File with the answer; - is standard input. Otherwise you're asked for it.")
    ] = None,
    dominant: Annotated[str, typer.Option(help="The phase or cause that dominates, by id.")] = "",
    second: Annotated[str, typer.Option(help="The second problem, by id.")] = "",
    number: Annotated[str, typer.Option(help="The number that the drill asks for.")] = "",
    unit: Annotated[str, typer.Option(help="Its unit, unless it follows the number.")] = "",
    fix: Annotated[list[str] | None, typer.Option(metavar="ID", help="A fix; up to three, best first.")] = None,
    finding: Annotated[str, typer.Option(help="The open question whose answer would change your mind, by key.")] = "",
    then: Annotated[str, typer.Option(help="The fix you'd put first in that case, by id.")] = "",
    ask: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A question to the interviewer; up to five.")
    ] = None,
    statement: Annotated[
        list[str] | None,
        typer.Option(metavar="NUMBER=ANSWER", help="On a statement: '1=agree 80', '2=disagree, sure'."),
    ] = None,
    dispute: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=REASON", help="A statement by its number, or a fix by id, that is wrong here; two at most."
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help='JSON: {"samples": {"A": {"diagnosis": "weak"}}, "own": {"diagnosis": ["strong", "quote"]}, '
            '"ticks": {"1": "quote"}, "statements": {"1": "agree 80"}, "replies": {"question": "reply"}}'
        ),
    ] = None,
    seed: Seed = 0,
    keep: Keep = True,
    judge_url: Annotated[
        str | None, typer.Option(help="An OpenAI API for a judge model.", envvar="MINILLM_JUDGE_URL")
    ] = None,
    judge_model: Annotated[str, typer.Option(help="The model to ask there.", envvar="MINILLM_JUDGE_MODEL")] = "default",
    as_json: Json = False,
) -> None:
    """Grade an answer part by part, with a verdict; then the model answers. A terminal asks for what is missing."""
    drawn = find_drill(drill_id).drawn(seed)
    commit = Commit(
        dominant=dominant, second=second, number=number, unit=unit, fixes=tuple(fix or ()), finding=finding, then=then
    )
    terminal, filled = Terminal(is_quiet=as_json), _sheet(sheet)
    answers = filled.pop("statements", {}) | {_place(key): words for key, words in _pairs("statement", statement)}
    disputed = filled.pop("disputed", {}) | dict(_pairs("dispute", dispute))
    sitting = sit(drawn, text="", commit=commit, statements=answers, asked=ask or ())
    if answer is None:
        terminal.write(sitting)
    else:
        sitting.text = _read(answer)
    if not sitting.text.strip():
        raise AnswerFileError(EMPTY)
    sitting = sit(
        drawn,
        text=sitting.text,
        commit=commit,
        statements=answers,
        asked=sitting.asked,
        disputed=disputed,
        seconds=sitting.seconds,
        **filled,
    )
    if answer is None or (sheet is None and not as_json and answer != "-" and sys.stdin.isatty()):
        terminal.go_through(stages(sitting))
    if judge_url:
        from course.drills.judge import hear  # an HTTP client takes long to import, and few ask for a judge

        terminal.say(f"The judge at {judge_url} grades the five samples before it may speak; that's most of its calls.")
        sitting.heard = hear(drawn, sitting.text, judge_url, judge_model)
    if keep:
        keep_attempt(attempt_of(sitting))
    solved = {"impossible": drawn.impossible, "model_answers": drawn.model_answers}
    asked = [f"The interviewer asks: {each.asks}" for each in sitting.turns if not each.reply]
    told = (sitting, *asked, f"\n{off_text(sitting.calibration)}\n", solution_text(drawn), f"\n{sitting.headline}")
    _print(as_json, {**sitting.to_dict(), **solved}, *told)


@app.command()
def mock(seed: Seed = 0, keep: Keep = True, as_json: Json = False) -> None:
    """A mock interview of 45 minutes: drills that fill it, pushback, debrief. Speak aloud, and write notes."""
    terminal, rounds, began = Terminal(is_quiet=as_json), [], time.monotonic()
    for place, drawn in enumerate(plan(seed)):
        left = max(60 * MINUTES - (time.monotonic() - began), 0)
        terminal.say(f"\nRound {place + 1}: {written(left)} left in all.\n")
        sitting = Sitting(drawn)
        terminal.write(sitting)
        if not sitting.text.strip():
            terminal.say(f"Passed over: {EMPTY}.")
            continue
        terminal.go_through(stages(sitting, is_graded=False))
        rounds.append(sitting)
        if keep:
            keep_attempt(attempt_of(sitting))
    told = debrief(rounds)
    shown = [f"{part}\n" for part in (told, *(solution_text(each.drill) for each in rounds))]
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
    told = [f"{each.when}  {each.drill:18} {each.level:8} {each.headline or f'{each.points:.0%}'}" for each in done]
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


def _sheet(sheet: Path | None) -> dict[str, Any]:
    """What `sit` takes, from a file. Raises AnswerFileError: it can't be read, or isn't such a sheet."""
    if sheet is None:
        return {}
    try:
        content: dict[str, Any] = json.loads(sheet.read_bytes())
        found: dict[str, Any] = {
            "samples": {str(label): dict(grades) for label, grades in content.pop("samples", {}).items()},
            "own": {key: (str(level), str(quote)) for key, (level, quote) in content.pop("own", {}).items()},
            "ticks": {int(number): str(quote) for number, quote in content.pop("ticks", {}).items()},
            "statements": {int(place): words for place, words in content.pop("statements", {}).items()},
            "replies": {str(asks): str(reply) for asks, reply in content.pop("replies", {}).items()},
            "disputed": {str(key): str(reason) for key, reason in content.pop("disputed", {}).items()},
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AnswerFileError(f"cannot read the sheet {sheet}: {error}") from None
    if content:
        raise AnswerFileError(f"{sheet} has {', '.join(content)}; a sheet has {', '.join(found)}")
    return found


def _pairs(option: str, written: list[str] | None) -> list[tuple[str, str]]:
    """KEY=WORDS, split. Raises AnswerFileError."""
    pairs = [each.partition("=") for each in written or ()]
    for key, sign, _ in pairs:
        if not sign:
            raise AnswerFileError(f"--{option} {key!r}: write it as PLACE=WORDS")
    return [(key.strip(), words.strip()) for key, _, words in pairs]


def _place(key: str) -> int:
    """Raises AnswerFileError: it is no number."""
    if not key.isdigit():
        raise AnswerFileError(f"--statement {key!r}: number the statements as they are on the table, from 1")
    return int(key)

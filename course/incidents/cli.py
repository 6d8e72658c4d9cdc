"""`minillm incident`: the same in a terminal, or step by step from a script.

A script repeats what it has done so far in each call: an incident follows from its seed, so that is all the state
there is. `--ask` as often as wanted, then `--answer`, `--canary` and `--deploy`; with `--json` one JSON object comes
back.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from operator import methodcaller
from typing import Annotated, Any

import typer

from course.incidents.classics import CLASSICS
from course.incidents.generate import IncidentError, find_intervention
from course.incidents.incident import DIAGNOSE_FIRST, GRADED, TOLD, Incident, find_question
from course.incidents.numbers import PLACES
from minillm.core.errors import MinillmError
from minillm.frontend.terminal import Lines, fitted
from minillm.host.storage import say

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

HELP = """\
questions                 what can be asked, and the minutes it takes
ask ID ...                evidence; the incident goes on meanwhile
suspect WORDS             what you think it is, in your own words; then:
fixes [PHASE]             what can be deployed
answer FIELD=VALUE ...    dominant_phase=queue secondary=decode evidence=batch,kv_use ranked=more_slots regime=steady
canary ID ...             for a tenth of the users first
deploy ID ...             for all; then: grade
rollback                  take back what is deployed
status, page, help, quit"""
DEPLOYING = "playing held-out traffic, with the change and without"
GRADING = "playing it under a dozen other changes"
COMMANDS = (
    "questions",
    "ask",
    "suspect",
    "fixes",
    "answer",
    "canary",
    "deploy",
    "rollback",
    "grade",
    "status",
    "page",
    "help",
    "quit",
)
SUSPECT_FIRST = "first, in your own words, what do you think it is? suspect WORDS"
LISTS = ("evidence", "ranked", "open_questions")
ANSWER_FIELDS = ("dominant_phase", "secondary", "regime", "hypothesis", *LISTS)


@app.command()
def incident(
    seed: Annotated[int, typer.Option(help="Which incident; the same seed, the same incident.")] = 0,
    difficulty: Annotated[int, typer.Option(help="1 = clear, 2 = with red herrings, 3 = with a second fault.")] = 1,
    cause: Annotated[str | None, typer.Option(help="Practise one cause, by name.")] = None,
    classic: Annotated[str | None, typer.Option(help=f"In place of a seed: {', '.join(CLASSICS)}.")] = None,
    today: Annotated[bool, typer.Option("--today", help="The daily incident: the same for everyone.")] = False,
    ask: Annotated[list[str] | None, typer.Option(metavar="ID", help="Ask for evidence; may be repeated.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='{"dominant_phase": ..., "secondary": ..., "evidence": [...], "ranked": []}'),
    ] = None,
    canary: Annotated[list[str] | None, typer.Option(metavar="ID", help="To a canary first; may be repeated.")] = None,
    deploy: Annotated[list[str] | None, typer.Option(metavar="ID", help="Deploy it; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """You are paged: ask for evidence, commit to a diagnosis, deploy a fix, and be graded on what it really did."""
    asked, tried, deployed = ask or [], canary or [], deploy or []
    fields = read_answer(asked, answer, [*tried, *deployed])
    TOLD.anywhere = True
    wait("looking for a week of traffic that goes wrong in this way")
    if today or classic:
        current = Incident.today() if today else Incident.classic(str(classic))
    else:
        current = Incident.generate(seed, difficulty, cause)
    if not (ask or answer or deploy or as_json):
        play_along(current)
        return
    report = step_by_step(current, asked, fields, tried, deployed)
    print(json.dumps(report, default=methodcaller("item")) if as_json else as_text(current, report))


def read_answer(ask: list[str], answer: str | None, deploy: list[str]) -> dict[str, Any] | None:
    """The fields of an answer. What can be seen to be wrong is told before an incident is drawn, which takes seconds.

    Raises:
        IncidentError: an id does not exist, the answer is no JSON object of the right fields, or there is none to
            deploy upon.
    """
    for name in ask:
        find_question(name)
    for name in deploy:
        find_intervention(name)
    if answer is None:
        if deploy:
            raise IncidentError(DIAGNOSE_FIRST)
        return None
    try:
        fields = json.loads(answer)
    except json.JSONDecodeError as error:
        raise IncidentError(f"--answer wants a JSON object: {error}") from None
    wrong = set(fields) - set(ANSWER_FIELDS) if isinstance(fields, dict) else {type(fields).__name__}
    if wrong:
        listed = ", ".join(ANSWER_FIELDS)
        raise IncidentError(f"--answer wants a JSON object with some of {listed}, not {', '.join(sorted(wrong))}")
    for name in LISTS:
        if not isinstance(fields.get(name, []), list):
            raise IncidentError(f"{name} of the answer is a list, not {fields[name]!r}")
    return fields


def step_by_step(
    current: Incident, ask: list[str], answer: dict[str, Any] | None, canary: list[str], deploy: list[str]
) -> dict[str, Any]:
    """Do all of it, and tell where things stand."""
    report: dict[str, Any] = {"name": current.name, "page": current.page.to_dict()}
    report["evidence"] = [current.ask(name).to_dict() for name in ask]
    if answer is not None:
        current.answer(**answer)
        for name, ids in (("canary", canary), ("deployed", deploy)):
            if ids:
                wait(DEPLOYING)
                report[name] = current.deploy(ids, canary=name == "canary").to_dict()
        wait(GRADING)
        result = current.grade()
        criteria = [asdict(criterion) for criterion in result.criteria]
        points = {"score": round(result.score, 2), "max_score": result.max_score}
        report["grade"] = {**points, "criteria": criteria, "notes": list(result.notes)}
        report["share"] = current.share()
        report["reveal"] = current.reveal().to_dict()
    report |= {"minutes": current.minutes, "status": current.status, "budget_burned": current.burned}
    report["questions"] = [question.to_dict() for question in current.questions()]
    report["interventions"] = [
        {"id": one.id, "phase": one.phase, "text": one.text, "cost": one.cost} for one in current.interventions()
    ]
    return report


def as_text(current: Incident, report: dict[str, Any]) -> str:
    """What a script's call shows to a reader."""
    parts = [str(current.page), *(str(current.ask(found["id"])) for found in report["evidence"]), current.status]
    if "grade" in report:
        parts += [str(current.grade()), str(current.reveal()), report["share"]]
    return "\n\n".join(parts)


# ---------------------------------------------------------------- by hand


def play_along(current: Incident) -> None:
    """Play it in a terminal, until the grade, or until there is nothing more to read."""
    print(fitted(f"{current.page}\n\n{current.status}\n\n{HELP}", sys.stdout))
    is_warned, names = False, [q.id for q in current.questions()] + [i.id for i in current.interventions()]
    lines = Lines("incident", [*COMMANDS, *(f"{field}=" for field in ANSWER_FIELDS), *PLACES, *names])
    while True:
        line = lines.read(f"\n[{current.minutes} min, {current.burned:.0%} of the error budget] > ")
        if line is None or line.strip() in ("quit", "exit"):
            return
        try:
            command, *rest = shlex.split(line) or ["help"]
            if command == "grade" and current.is_undeployed and not is_warned:
                is_warned = True
                print("nothing is deployed: type grade again to be graded without it")
                continue
            print(fitted(reply(current, command, rest), sys.stdout))
        except (MinillmError, ValueError) as error:
            print(fitted(str(error), sys.stdout))
            continue
        if command == "grade":
            return


def reply(current: Incident, command: str, rest: list[str]) -> str:
    """What one command comes to.

    Raises:
        IncidentError: it comes out of turn, or there is no such command.
    """
    match command:
        case "page":
            return str(current.page)
        case "questions":
            return in_groups((q.group, f"{q.id:16} {q.minutes} min  {q.text}") for q in current.questions())
        case "suspect" if rest:
            current.suspect(" ".join(rest))
            return "noted: see the fixes now"
        case "suspect" | "fixes" if not current.hypothesis:
            raise IncidentError(SUSPECT_FIRST)
        case "fixes" | "interventions":
            shown = [one for one in current.interventions() if not rest or one.phase in rest]
            return in_groups((one.phase, f"{one.id:20} {one.text} ({one.cost})") for one in shown)
        case "ask" if rest:
            return "\n\n".join(str(current.ask(name)) for name in rest)
        case "ask":
            raise IncidentError("name at least one question, by its id")
        case "answer":
            current.answer(**typed_answer(rest))
            return f"noted: deploy something now, then grade. {GRADED}"
        case "canary" | "deploy":
            for name in rest:  # a wrong one is told before anything is played
                find_intervention(name)
            wait(DEPLOYING)
            return str(current.deploy(rest, canary=command == "canary"))
        case "rollback":
            current.roll_back()
            return "rolled back"
        case "status":
            return current.status
        case "grade":
            wait(GRADING)
            return f"{current.grade()}\n\n{current.reveal()}\n\n{current.share()}"
        case "help":
            return HELP
    raise IncidentError(f"no command {command!r}\n{HELP}")


def in_groups(rows: Iterable[tuple[str, str]]) -> str:
    """A heading wherever the group changes."""
    blocks = [(group, *(f"  {text}" for _, text in each)) for group, each in groupby(rows, lambda row: row[0])]
    return "\n".join(line for block in blocks for line in block)


def typed_answer(words: list[str]) -> dict[str, Any]:
    """`evidence=batch,kv_use dominant_phase=queue` to the fields of an answer."""
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in ANSWER_FIELDS:
            raise IncidentError(f"an answer is made of FIELD=VALUE with {', '.join(ANSWER_FIELDS)}; got {word!r}")
        fields[name] = [part for part in value.split(",") if part] if name in LISTS else value
    return fields


def wait(reason: str) -> None:
    """Say what takes so long, if there is a screen to say it on."""
    say(f"{reason} ...", progress=sys.stderr.isatty())

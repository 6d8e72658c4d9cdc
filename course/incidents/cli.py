"""`minillm incident`: the same in a terminal, or step by step from a script.

A script repeats what it has done so far in each call: an incident follows from its seed, so that is all the state
there is. `--mitigate` first, `--ask` as often as wanted, then `--answer`, `--canary` and `--deploy`; with `--json` one
JSON object comes back. By hand, everything is chosen from menus, by number.
"""

import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import date, timedelta
from hashlib import sha256
from itertools import groupby
from operator import methodcaller
from typing import Annotated, Any

import typer

from course.incidents import daily
from course.incidents.classics import CLASSICS
from course.incidents.generate import IncidentError, find_intervention
from course.incidents.incident import GRADED, TOLD, Incident, find_question
from course.incidents.interventions import AT_ONCE, Intervention
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.numbers import PLACES
from course.incidents.questions import BY_ID as QUESTIONS
from course.lab.json_store import JsonStore
from course.lab.left import KeptLines, LeftSession, forget_left, is_over, keep_left
from course.lab.streak import streak
from course.terminal import fitted
from minillm.core.errors import MinillmError
from minillm.frontend.terminal import Lines
from minillm.host.storage import say

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

HELP = """\
mitigate                  help users first: what can be done right away, before anything is known
ask                       evidence, as of the page: it doesn't show what your changes did
suspect WORDS             what you think it is, in your own words; no points
answer                    commit to a diagnosis, once
canary, deploy            any change, for a tenth of the users or for all: what takes up to half an hour helps
                          users, too; anything longer is the follow-up. It takes the place of what stood
                          before: name two together to keep both
grade                     when it's over: points, and the truth
rollback                  take back what was deployed last
status, page, help
quit                      later: minillm incident --resume

Each shows a menu: type one or more of its numbers; back leaves it. An id works as well; both can be typed behind the
command."""
BACK = "back"
"""Typed in a menu, it calls the command off."""
DEPLOYING = "playing held-out traffic, with the change and without"
GRADING = "playing it under a dozen other changes"
COMMANDS = (
    "mitigate",
    "ask",
    "suspect",
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
LISTS = ("evidence", "ranked", "open_questions")
ANSWER_FIELDS = ("cause", "dominant_phase", "secondary", "regime", "hypothesis", "ruled_out", *LISTS)
Choices = Sequence[tuple[str, str, str]]
"""Group, id and text of each entry of a menu."""
PASSES: Choices = (("", "steady", "no, it's steady"), ("", "spike", "yes, it's a spike"))
"""An entry of a menu: a group, an id, and what is shown."""


@app.command()
def incident(
    seed: Annotated[int, typer.Option(help="Which incident; the same seed gives the same incident.")] = 0,
    difficulty: Annotated[int, typer.Option(help="1 = clear, 2 = red herrings, 3 = a second fault.")] = 1,
    cause: Annotated[str | None, typer.Option(help="Practise one cause, by name.")] = None,
    classic: Annotated[str | None, typer.Option(help=f"Instead of a seed: {', '.join(CLASSICS)}.")] = None,
    today: Annotated[bool, typer.Option("--today", help="The daily incident: the same for everyone.")] = False,
    day: Annotated[str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Another day's incident.")] = None,
    yesterday: Annotated[
        bool, typer.Option("--yesterday", help="Yesterday's: what it was, and the three best runs.")
    ] = False,
    archive: Annotated[bool, typer.Option("--archive", help="The last two weeks, your results, your streak.")] = False,
    mitigate: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Mitigate before you ask anything; may be repeated.")
    ] = None,
    ask: Annotated[list[str] | None, typer.Option(metavar="ID", help="Ask for evidence; may be repeated.")] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='{"cause": ..., "dominant_phase": ..., "secondary": ..., "regime": "steady" or "spike", '
            '"evidence": [], "ruled_out": {QUESTION: CAUSE}, "ranked": []}',
        ),
    ] = None,
    canary: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Try it on a canary first; may be repeated.")
    ] = None,
    deploy: Annotated[list[str] | None, typer.Option(metavar="ID", help="Deploy it; may be repeated.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what you left by hand.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """You get paged: ask for evidence, commit to a diagnosis, deploy a fix, and be graded on what it really did."""
    now = date.today()
    if archive:
        print(archive_as_json(now) if as_json else daily.archive(daily.RESULTS.read(), now))
        return
    if yesterday:
        tell_solution(now - timedelta(days=1), as_json)
        return
    choices = {
        "--today": today,
        "--date": day,
        "--classic": classic,
        "a seed": (seed, difficulty, cause) != (0, 1, None),
    }
    if len(chosen := [name for name, is_given in choices.items() if is_given]) > 1 and not resume:
        raise IncidentError(f"{' and '.join(chosen)} each say which incident: give one of them")
    first, asked, tried, deployed = mitigate or [], ask or [], canary or [], deploy or []
    fields = read_answer(asked, answer, [*first, *tried, *deployed])
    TOLD.anywhere = daily.RESULTS.anywhere = LEFT.anywhere = True
    by_hand = not (mitigate or ask or answer or canary or deploy or as_json)
    before = LEFT.read() if by_hand or resume else LeftIncident()
    if resume:
        if not by_hand or (seed, difficulty, cause, classic, today, day) != (0, 1, None, None, False, None):
            raise IncidentError("--resume goes on by hand with the incident that you left: it takes no other option")
        if not before.lines:
            raise IncidentError("nothing to go on with: what's played by hand is kept from the first line to the grade")
        seed, difficulty, cause, classic, day = before.seed, before.difficulty, before.cause, before.classic, before.day
    wait("looking for a week of traffic that goes wrong in this way")
    which = date_of(day) if day else now if today else None
    if which is not None:
        current = Incident.today(which)
    elif classic:
        current = Incident.classic(classic)
    else:
        current = Incident.generate(seed, difficulty, cause)
    if by_hand:
        kept_day = None if which is None else str(which)
        left = LeftIncident(
            seed=seed, difficulty=difficulty, cause=cause, classic=classic, day=kept_day, offers=offers_of(current)
        )
        if resume and before.offers != left.offers:
            raise IncidentError("minillm has changed since you left: what you typed would mean something else now")
        if resume:
            left = before
        elif before.lines:
            print("You left another one: `minillm incident --resume` goes on with it, until you type something here.\n")
        if not play_along(current, left):
            print("\nNot graded." + (" `minillm incident --resume` goes on from here." if left.lines else ""))
        elif which is not None:
            print(kept_for(current, which, now))
        return
    report = step_by_step(current, first, asked, fields, tried, deployed)
    print(json.dumps(report, default=methodcaller("item")) if as_json else as_text(current, report))


def date_of(text: str) -> date:
    """The day that an option names.

    Raises:
        IncidentError: it's no date, or one to come.
    """
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise IncidentError(f"--date wants a day such as 2026-01-05, not {text!r}") from None
    if found > date.today():
        raise IncidentError(f"{found} is yet to come: the daily incident has its own day")
    return found


def archive_as_json(today: date) -> str:
    """The last days, for programs."""
    results = daily.RESULTS.read()
    days = {day: found and found.model_dump() for day, found in daily.last_days(results, today).items()}
    return json.dumps({"days": days, "streak": streak(results.days, today)})


def tell_solution(day: date, as_json: bool) -> None:
    """What a day's incident was, and how it is played well."""
    wait("playing that day's incident")
    known, runs = daily.solution_of(day)
    if as_json:
        solution = {"date": str(day), "reveal": known.reveal(()).to_dict(), "best_runs": [asdict(run) for run in runs]}
        print(json.dumps(solution, default=methodcaller("item")))
        return
    told = "\n".join(known.reveal(()).told)
    best = "\n".join(map(str, runs))
    print(fitted(f"incident of {day}\n{told}\n\nThe best runs of the simulator's own players:\n{best}", sys.stdout))


def kept_for(current: Incident, day: date, now: date) -> str:
    """Note the day's result; par and streak in a line."""
    daily.keep(current, day, now)
    wait("playing it for its par")
    return f"{daily.par_of(current)}; streak {streak(daily.RESULTS.read().days, now)}"


def read_answer(ask: list[str], answer: str | None, deploy: list[str]) -> dict[str, Any] | None:
    """The fields of an answer. What can be seen to be wrong is told before an incident is drawn, which takes seconds.

    Raises:
        IncidentError: an id does not exist, or the answer is no JSON object of the right fields.
    """
    for name in ask:
        find_question(name)
    for name in deploy:
        find_intervention(name)
    if answer is None:
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
    if not isinstance(fields.get("ruled_out", {}), dict):
        raise IncidentError(f"ruled_out of the answer is an object, causes by question, not {fields['ruled_out']!r}")
    return fields


def step_by_step(
    current: Incident,
    mitigate: list[str],
    ask: list[str],
    answer: dict[str, Any] | None,
    canary: list[str],
    deploy: list[str],
) -> dict[str, Any]:
    """Do all of it, in this order, and tell where things stand. Whoever answers is graded."""
    report: dict[str, Any] = {"name": current.name, "page": current.page.to_dict()}

    def put(name: str, ids: list[str]) -> None:
        if ids:
            wait(DEPLOYING)
            report[name] = current.deploy(ids, canary=name == "canary").to_dict()

    put("mitigated", mitigate)
    report["evidence"] = [current.ask(name).to_dict() for name in ask]
    if answer is not None:
        current.answer(**answer)
    put("canary", canary)
    put("deployed", deploy)
    if answer is not None:
        wait(GRADING)
        result = current.grade()
        criteria = [asdict(criterion) for criterion in result.criteria]
        points = {"score": round(result.score, 2), "max_score": result.max_score}
        report["grade"] = {**points, "criteria": criteria, "notes": list(result.notes)}
        report["share"] = current.share()
        report["reveal"] = current.reveal().to_dict()
    report |= {"minutes": current.minutes, "status": current.status, "budget_burned": current.burned}
    report["questions"] = [question.to_dict() for question in current.questions()]
    report["suspects"] = [{"id": each.name, "title": each.title} for each in current.suspects()]
    report["interventions"] = [
        {"id": one.id, "phase": one.phase, "text": one.text, "cost": one.cost} for one in current.interventions()
    ]
    return report


def as_text(current: Incident, report: dict[str, Any]) -> str:
    """What a script's call shows to a reader."""
    parts = [str(current.page), *(str(current.ask(found["id"])) for found in report["evidence"])]
    parts += [f"{name}: {', '.join(report[name]['deployed'])}" for name in ("mitigated", "deployed") if name in report]
    parts.append(current.status)
    if "grade" in report:
        parts += [str(current.grade()), str(current.reveal()), report["share"]]
    return "\n\n".join(parts)


# ---------------------------------------------------------------- by hand


class LeftIncident(LeftSession):
    """An incident that is played by hand, until its grade. It follows from its seed."""

    seed: int = 0
    difficulty: int = 1
    cause: str | None = None
    classic: str | None = None
    day: str | None = None


LEFT = JsonStore("incident_left.json", LeftIncident)


def offers_of(current: Incident) -> str:
    """The page and all menus: what numbers and words mean there, as a hash."""
    questions, changes = [each.id for each in current.questions()], [each.id for each in current.interventions()]
    names = [*questions, *changes, *(each.name for each in current.suspects())]
    return sha256(json.dumps([current.page.alarm, *names]).encode()).hexdigest()


def play_along(current: Incident, left: LeftIncident) -> bool:
    """Play it in a terminal, until the grade, or until there is nothing more to read; whether it was graded.

    Args:
        left: what was typed before, and is typed now.
    """
    print(fitted(f"{current.page}\n\n{current.status}\n\n{HELP}", sys.stdout))
    names = [each.id for each in (*current.questions(), *current.interventions())]
    terminal = Lines("incident", [*COMMANDS, *PLACES, *names, *(each.name for each in current.suspects())])

    def keep(line: str) -> None:
        left.lines.append(line)
        keep_left(LEFT, left)

    lines = KeptLines(left.lines, terminal.read, keep)
    is_warned = False
    while True:
        line = lines.read(f"\n[{current.minutes} min, {current.burned:.1%} of the error budget] > ")
        if line is None or is_over(line):
            return False
        try:
            command, *rest = shlex.split(line) or ["help"]
            if command == "grade" and current.is_undeployed and not is_warned:
                is_warned = True
                print("nothing is deployed: type grade again to be graded without it")
                continue
            print(fitted(reply(current, command, rest, lines.read), sys.stdout))
        except (MinillmError, ValueError) as error:
            print(fitted(str(error), sys.stdout))
            continue
        if command == "grade":
            forget_left(LEFT, left)
            return True


def reply(current: Incident, command: str, rest: list[str], read: Callable[[str], str | None]) -> str:
    """What one command comes to. Where nothing stands behind it, its menu is shown, and a line read.

    Raises:
        IncidentError: it comes out of turn, or there is no such command.
    """
    match command:
        case "page":
            return str(current.page)
        case "suspect" if rest:
            current.suspect(" ".join(rest))
            return "noted"
        case "suspect":
            raise IncidentError("in your own words, what do you think it is? suspect WORDS")
        case "ask":
            known = [(q.group, q.id, f"{q.minutes} min  {q.text}") for q in current.questions()]
            ids = by_number(rest, known) or pick(known, "what do you ask?", read, QUESTIONS)
            for name in ids:  # a wrong one is told before any takes its minutes
                find_question(name)
            return "\n\n".join(str(current.ask(name)) for name in ids)
        case "answer":
            current.check_open()
            current.answer(**answer_from_menus(current, read))
            stays = "grade what you've deployed, or deploy" if not current.is_undeployed else "deploy"
            return f"noted: {stays} something for good, then grade. {GRADED}"
        case "mitigate" | "canary" | "deploy":
            quick = [one for one in AT_ONCE if one in current.interventions()]
            known = [
                (one.phase, one.id, priced(one))
                for one in (quick if command == "mitigate" else current.interventions())
            ]
            ids = by_number(rest, known) or pick(known, "what do you change?", read, CHANGES)
            for name in ids:  # a wrong one is told before anything is played
                find_intervention(name)
            wait(DEPLOYING)
            before, effect = current.in_place, current.deploy(ids, canary=command == "canary")
            if before in ("", current.in_place):
                return str(effect)
            waits = command != "canary" and not effect.is_quick
            return f"{effect}\n{'It stays until that is done' if waits else 'Taken back for it'}: {before}."
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


def answer_from_menus(current: Incident, read: Callable[[str], str | None]) -> dict[str, Any]:
    """The fields of an answer, each from its menu; an empty line leaves one out."""
    places = [("", place, place.replace("_", " ")) for place in PLACES]
    suspects = [("", each.name, each.title) for each in current.suspects()]
    asked = [("", each.id, each.text) for each in current.asked()]
    changes = [(one.phase, one.id, priced(one)) for one in current.interventions()]
    fields: dict[str, Any] = {
        "cause": first_of(pick(suspects, "what is the cause?", read)),
        "dominant_phase": first_of(pick(places, "where is the time lost?", read)),
        "secondary": first_of(pick(places, "is there a second problem?", read)),
        "regime": first_of(pick(PASSES, "does it pass by itself?", read)),
    }
    if asked:
        fields["evidence"] = pick(asked, "which answers prove it?", read)
        against = first_of(pick(suspects, "which other cause have you ruled out?", read))
        by = first_of(pick(asked, "by which answer?", read)) if against else None
        fields["ruled_out"] = {by: against} if by and against else {}
    fields["ranked"] = pick(changes, "which changes help, the best first?", read)
    return fields


def priced(one: Intervention) -> str:
    """A change, and what it costs. The heading above says it of those that are done right away."""
    cost = one.loss if one.phase == one.effort else one.cost
    return f"{one.text} ({cost})" if cost else one.text


def first_of(ids: list[str]) -> str | None:
    """The first, or None."""
    return ids[0] if ids else None


def pick(known: Choices, question: str, read: Callable[[str], str | None], names: Collection[str] = ()) -> list[str]:
    """Ids chosen from a menu, by number or by name, in the order in which they are typed. A line with anything that
    isn't there is read again: what was chosen before stays.

    Args:
        names: further ids that may be typed, though the menu doesn't show them.
    Raises:
        IncidentError: the command is called off.
    """
    rows = ((group, f"{number:3}  {text}") for number, (group, _, text) in enumerate(known, 1))
    print(fitted(in_groups(rows), sys.stdout))
    by_word = {name: name for name in (*names, *(name for _, name, _ in known))}
    by_word |= {str(number): name for number, (_, name, _) in enumerate(known, 1)}
    while True:
        words = (read(f"{question} (numbers) > ") or "").replace(",", " ").split()
        if words == [BACK]:
            raise IncidentError("nothing done")
        wrong = [word for word in words if word not in by_word]
        if not wrong:
            return [by_word[word] for word in words]
        print(
            fitted(
                f"not in the menu: {', '.join(wrong)}; choose from 1 to {len(known)}, or none; {BACK} leaves",
                sys.stdout,
            )
        )


def by_number(words: Sequence[str], known: Choices) -> list[str]:
    """Ids for a menu's numbers; what is no number of it stays as it was typed."""
    numbered = {str(number): name for number, (_, name, _) in enumerate(known, 1)}
    return [numbered.get(word, word) for word in words]


def in_groups(rows: Iterable[tuple[str, str]]) -> str:
    """A heading wherever the group changes; none over a group without a name."""
    blocks = [
        ([group] if group else [], [text for _, text in each]) for group, each in groupby(rows, lambda row: row[0])
    ]
    return "\n".join(line for head, texts in blocks for line in (*head, *texts))


def wait(reason: str) -> None:
    """Say what takes so long, if there is a screen to say it on."""
    if sys.stderr.isatty():
        say(f"{reason} ...")

"""`minillm round`: open design rounds in a terminal, or from a file of answers."""

import json
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from course.drills.clock import written
from course.lab.json_store import JsonStore
from course.lab.left import KeptLines, LeftSession, forget_left, is_over, keep_left
from course.rounds.errors import CommitmentError
from course.rounds.history import FILE, history_text
from course.rounds.history import keep as keep_round
from course.rounds.library import IDS, find_round
from course.rounds.pages import RoundField, RoundPage, pages
from course.rounds.prompt import DrawnRound
from course.rounds.report import columns_text, debrief, everything, sample_text, to_dict
from course.rounds.sitting import RoundSitting
from course.terminal import fitted
from minillm.core.errors import MinillmError
from minillm.frontend.terminal import Lines
from minillm.host.storage import say

app = typer.Typer(
    help="Open design rounds of 35 to 45 minutes: ask, estimate, draw, defend, survive a failure and a change of mind.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Seed = Annotated[int, typer.Option(help="Which numbers to draw; 0 = the classic ones.")]
Keep = Annotated[bool, typer.Option(help="Keep the verdict on this machine, for the history.")]
Id = Annotated[str, typer.Argument(metavar="ROUND_ID", help="As `minillm round list` names it.")]
END = "."
"""A line with nothing else ends a long answer."""
ASKED = "ask"
"""In a file of answers: the questions, by key."""


class AnswersFileError(MinillmError):
    """A file of answers can't be read, or answers what isn't asked."""


class LeftRoundError(MinillmError):
    """There's no round to go on with, or not this one any more."""


class _LeftTheRoundError(Exception):
    """`quit` was typed, or the input has ended."""


class LeftRound(LeftSession):
    """A round that is sat by hand, until its verdict."""

    round: str = ""
    seed: int = 0
    seconds: float = 0.0
    """On the clock, up to the last line."""


LEFT = JsonStore("round_left.json", LeftRound, anywhere=True)


@app.callback()
def history(
    context: typer.Context,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the round that you left.")] = False,
    as_json: Json = False,
) -> None:
    """What you have played, with the level of each area, and what to play next. `minillm round list` has all rounds."""
    if resume:
        if context.invoked_subcommand is not None:
            raise LeftRoundError("--resume goes on with the round that you left: it takes no command behind it")
        _go_on(as_json)
    elif context.invoked_subcommand is None:
        done = FILE.read().done
        _print(as_json, {"played": [each.model_dump() for each in done]}, history_text(done))


@app.command("list")
def list_rounds(as_json: Json = False) -> None:
    """All rounds: id, minutes, title, hardware and model."""
    found = [find_round(name) for name in IDS]
    rows = [each.model_dump(include={"id", "title", "topics", "round", "level", "hardware", "model"}) for each in found]
    for row, each in zip(rows, found):
        row["minutes"] = each.minutes
    lines = [f"{each.id:10} {each.minutes} min  {each.title}  ({each.hardware}; {each.model})" for each in found]
    _print(as_json, {"rounds": rows}, *lines)


@app.command()
def show(
    round_id: Id,
    seed: Seed = 0,
    solved: Annotated[bool, typer.Option("--solved", help="The columns and a sample conversation: a spoiler.")] = False,
    as_json: Json = False,
) -> None:
    """The opening, the stages with their minutes, and where such a prompt was reported."""
    drawn = find_round(round_id).drawn(seed)
    about = drawn.round
    stages = [{"key": each.key, "title": each.title, "minutes": each.minutes} for each in about.stages]
    sources = [each.model_dump() for each in about.sources]
    fields = {"id": about.id, "title": about.title, "opening": drawn.fill(about.opening), "seed": seed}
    lines = [
        f"{about.title} ({about.minutes} minutes; {about.round}, {about.level})",
        "",
        drawn.fill(about.opening),
        "",
    ]
    lines += [f"{each.minutes:3d} min  {each.title}" for each in about.stages]
    lines += ["", *(f"{each.says}: {each.url}" for each in about.sources)]
    if solved:
        fields["columns"], fields["sample"] = columns_text(drawn), sample_text(drawn)
        lines += ["", columns_text(drawn), "", sample_text(drawn)]
    _print(as_json, {**fields, "stages": stages, "sources": sources}, *lines)


@app.command()
def sit(
    round_id: Id,
    seed: Seed = 0,
    answers: Annotated[
        Path | None, typer.Option(help='JSON: {"ask": ["FACT"], "PAGE": {"FIELD": "filled in"}}; else you\'re asked.')
    ] = None,
    keep: Keep = True,
    as_json: Json = False,
) -> None:
    """Sit a round: the interviewer answers what you ask, asks back, and tells a verdict by level at the end."""
    sitting = RoundSitting(find_round(round_id).drawn(seed))
    if answers is None:
        if LEFT.read().lines and keep:
            say("You left another round: `minillm round --resume` goes on with it, until you type something here.")
        _sit_by_hand(sitting, LeftRound(round=round_id, seed=seed, offers=_offers_of(sitting)), keep, as_json)
        return
    answer_from(sitting, _read(answers))
    if keep:
        keep_round(sitting)
    _print(as_json, to_dict(sitting), everything(sitting), "", debrief(sitting))


def _go_on(as_json: bool) -> None:
    """Raises LeftRoundError if there's nothing to go on with."""
    left = LEFT.read()
    if not left.lines:
        raise LeftRoundError("nothing to go on with: a round is kept from the first line you type to the verdict")
    sitting = RoundSitting(find_round(left.round).drawn(left.seed))
    if left.offers != _offers_of(sitting):
        raise LeftRoundError("minillm has changed since you left: what you typed would mean something else now")
    _sit_by_hand(sitting, left, True, as_json)


def _sit_by_hand(sitting: RoundSitting, left: LeftRound, keep: bool, as_json: bool) -> None:
    """To the verdict, or until it's left."""
    if not _Terminal(sitting, left, keep, is_quiet=as_json).go_through():
        later = " `minillm round --resume` goes on from here; the clock stands until then." * bool(left.lines and keep)
        _print(as_json, {"id": left.round, "seed": left.seed, "left": True}, f"\nNo verdict yet.{later}")
        return
    if keep:
        forget_left(LEFT, left)
        keep_round(sitting)
    _print(as_json, to_dict(sitting), everything(sitting), "", debrief(sitting))


def _offers_of(sitting: RoundSitting) -> str:
    """The round as it was drawn: what numbers typed in its menus mean, as a hash."""
    drawn = sitting.drawn
    told = [drawn.round.model_dump_json(), *(fact.key for fact in drawn.menu), *map(str, drawn.numbers.amounts.items())]
    return sha256("\n".join(told).encode()).hexdigest()


def answer_from(sitting: RoundSitting, answers: dict[str, Any]) -> None:
    """A whole round from a file's answers; pages and fields that it leaves out are left open.

    Raises:
        AnswersFileError: it answers a page or field that isn't asked, or an answer can't be read.
    """
    left = {name: dict(filled) for name, filled in answers.items() if name != ASKED}
    for key in answers.get(ASKED, ()):
        sitting.ask(str(key))
    asked, filled = pages(sitting), None
    while True:
        try:
            page = next(asked) if filled is None else asked.send(filled)
        except StopIteration:
            break
        given, keys = left.pop(page.key, {}), [each.key for each in page.fields]
        if unknown := sorted(set(given) - set(keys)):
            raise AnswersFileError(f"{page.key} doesn't ask for {', '.join(unknown)}, but for {', '.join(keys)}")
        filled = {each.key: _from_file(page, each, given) for each in page.fields}
    if left:
        raise AnswersFileError(f"nothing in this round asks for {', '.join(sorted(left))}")


def _from_file(page: RoundPage, field: RoundField, given: dict[str, Any]) -> str:
    try:
        return field.checked(str(given.get(field.key, "")))
    except CommitmentError as error:
        raise AnswersFileError(f"{page.key}.{field.key}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or not all(isinstance(each, dict | list) for each in content.values()):
            raise ValueError("an object of pages is needed")
        if any(isinstance(filled, list) for name, filled in content.items() if name != ASKED):
            raise ValueError("each page is an object of fields")
        return content
    except (OSError, ValueError) as error:
        raise AnswersFileError(f"cannot read the answers in {file}: {error}") from None


class _Terminal:
    """Goes through a round with somebody at a keyboard.

    Args:
        left: what was typed before, and is typed now.
        keep: whether that is kept, to go on later.
    """

    def __init__(self, sitting: RoundSitting, left: LeftRound, keep: bool, is_quiet: bool) -> None:
        self._sitting, self._left = sitting, left
        self._screen = sys.stderr if is_quiet else sys.stdout
        self._began = time.monotonic() - left.seconds
        read = Lines("round", [], self._screen).read
        self._lines = KeptLines(left.lines, read, self._keep if keep else lambda line: None, self._screen)
        self._menu: dict[str, str] = {}
        """The last one that was shown."""

    def go_through(self) -> bool:
        """Whether it came to its end."""
        drawn = self._sitting.drawn
        self._say(f"{drawn.round.title} ({drawn.round.minutes} minutes; quit leaves, minillm round --resume goes on)")
        self._say(f"\n{drawn.fill(drawn.round.opening)}")
        asked, filled = pages(self._sitting), None
        while True:
            try:
                page = next(asked) if filled is None else asked.send(filled)
            except StopIteration:
                break
            used = written(time.monotonic() - self._began)
            self._say(f"\n[{used} of {drawn.round.minutes}:00]  {page.title}\n{page.text}")
            try:
                if page.has_questions:
                    self._questions(drawn)
                filled = {field.key: self._filled(field, page) for field in page.fields}
            except _LeftTheRoundError:
                return False
        self._sitting.seconds = time.monotonic() - self._began
        return True

    def _keep(self, line: str) -> None:
        self._left.lines.append(line)
        self._left.seconds = time.monotonic() - self._began
        keep_left(LEFT, self._left)

    def _line(self, prompt: str) -> str:
        line = self._lines.read(prompt)
        if line is None or is_over(line):
            raise _LeftTheRoundError
        return line

    def _questions(self, drawn: DrawnRound) -> None:
        for place, fact in enumerate(drawn.menu, 1):
            self._say(f"  {place:2d}. {fact.asks}")
        while self._sitting.questions_left:
            typed = self._read(f"ask, by number ({self._sitting.questions_left} left; empty goes on): ")
            if not typed:
                return
            for number in typed.replace(",", " ").split():
                self._ask(number)

    def _ask(self, typed: str) -> None:
        menu = self._sitting.drawn.menu
        if not typed.isdecimal() or not 1 <= int(typed) <= len(menu):
            self._say(f"there's no question {typed!r}: choose from 1 to {len(menu)}")
            return
        try:
            self._say(self._sitting.ask(menu[int(typed) - 1].key))
        except CommitmentError as error:
            self._say(str(error))

    def _filled(self, field: RoundField, page: RoundPage) -> str:
        """Until it can be read, or is empty. A question's number after a ? asks it first. The menu of the field before
        isn't shown again.
        """
        if field.about:
            self._say(f"\n{field.about}")
        options = field.options or {}
        places = {str(place): key for place, key in enumerate(options, 1)}
        if options != self._menu:
            for place, key in places.items():
                self._say(f"  {place}. {options[key]}")
        self._menu = dict(options)
        while True:
            typed = self._long(field) if field.is_long else self._read(f"{field.label}: ")
            if typed.startswith("?") and not page.key.startswith("columns"):
                self._ask(typed[1:].strip())
                continue
            if typed and options and typed not in places and typed not in options:
                self._say(f"no {typed!r} in this menu: choose from 1 to {len(places)}, or leave it empty")
                continue
            try:
                return field.checked(places.get(typed, typed))
            except CommitmentError as error:
                self._say(str(error))

    def _long(self, field: RoundField) -> str:
        self._say(f"({field.label}; a line with nothing but {END!r} ends it)")
        lines = []
        while (line := self._line("")).strip() != END:
            lines.append(line.rstrip("\n"))
            if lines[0].startswith("?"):
                break
        return "\n".join(lines)

    def _read(self, prompt: str) -> str:
        return self._line(prompt).strip()

    def _say(self, text: str) -> None:
        print(fitted(text, self._screen), file=self._screen, flush=True)


def _print(as_json: bool, found: dict[str, Any], *lines: str) -> None:
    """The one for programs, or the others for people."""
    print(json.dumps(found) if as_json else fitted("\n".join(lines), sys.stdout))

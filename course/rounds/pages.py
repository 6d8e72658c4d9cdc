"""The conversation, page by page: the same in a notebook, in a terminal and from a script."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from course.rounds.board import read_edges
from course.rounds.errors import CommitmentError
from course.rounds.prompt import AREAS, COLUMNS, Stage
from course.rounds.sitting import BELIEFS, FALLS, SURE, RoundSitting
from course.rounds.typed import UNITS

SAY, SURE_OF, BOARD = "say", "sure", "board"


def _anything(_: str) -> None:
    """Any text will do."""


@dataclass(frozen=True)
class RoundField:
    """One thing to fill in; empty is left open."""

    key: str
    label: str
    options: Mapping[str, str] | None = None
    """What can be chosen, by key; None = typed."""
    about: str = ""
    is_long: bool = False
    check: Callable[[str], None] = _anything
    """Raises CommitmentError for what can't be read; not called for what is empty."""

    def checked(self, filled: str) -> str:
        """Stripped, and readable. Raises CommitmentError, which names what was asked."""
        filled, asked = filled.strip(), (self.about or self.label).partition("\n")[0]
        if filled and self.options is not None and filled not in self.options:
            raise CommitmentError(f"no {filled!r} in this menu: {', '.join(self.options)} (asked: {asked})")
        if filled:
            try:
                self.check(filled)
            except CommitmentError as error:
                raise CommitmentError(f"{error} (asked: {asked})") from None
        return filled


@dataclass(frozen=True)
class RoundPage:
    """Something that the interviewer says, and what is to be filled in."""

    key: str
    title: str
    text: str
    fields: Sequence[RoundField]
    has_questions: bool = False
    """Facts may be asked for now; they may later, too, while there's time."""


Pages = Generator[RoundPage, dict[str, str], None]
"""Each page is sent what was filled in, by key of its fields, checked."""


def pages(sitting: RoundSitting) -> Pages:
    """A whole round. What is sent is kept in the sitting, page after page."""
    for stage in sitting.drawn.round.stages:
        filled = yield _opening(sitting, stage)
        _keep(sitting, stage, filled)
        yield from _push(sitting, stage)
        if statements := sitting.drawn.statements(stage):
            fields = [
                RoundField(str(place), str(place + 1), BELIEFS, sitting.drawn.fill(each.says))
                for place, each in enumerate(statements)
            ]
            text = "Eight statements about this very case. Some are true, some aren't: what do you think of each?"
            filled = yield RoundPage(f"{stage.key}.statements", "On the table", text, fields)
            _believe(sitting, stage, filled)
    yield from _columns(sitting)


def _opening(sitting: RoundSitting, stage: Stage) -> RoundPage:
    drawn, fields = sitting.drawn, []
    for number in stage.numbers:
        unit = drawn.asked(number).unit
        label = number_label(unit)
        check = partial(sitting.check_number, stage.key, number.key)
        fields.append(RoundField(number.key, label, about=drawn.fill(number.asks), check=check))
    for choice in stage.choices:
        fields.append(RoundField(choice.key, "choose", drawn.options(choice), drawn.fill(choice.asks)))
    if stage.key == "boxes":
        menu = "\n".join(f"- {each.key}: {each.name}" for each in drawn.round.components)
        about = f"Boxes and arrows: a > b > c, more chains on lines of their own. Boxes to choose from:\n{menu}"
        names = [each.key for each in drawn.round.components]
        fields.append(
            RoundField(BOARD, "arrows", about=about, is_long=True, check=lambda typed: _read_board(typed, names))
        )
    if stage.key == "change":
        for place, decision in enumerate(drawn.round.change.decisions):
            fields.append(RoundField(str(place), str(place + 1), FALLS, drawn.fill(decision.says)))
    if stage.commitments:
        fields.append(RoundField(SURE_OF, "how sure are you of these?", SURE))
    fields.append(RoundField(SAY, "say it", about="In your own words, as you'd say it aloud:", is_long=True))
    title = f"{stage.title} ({stage.minutes} minutes)"
    text = drawn.changed.fill(stage.says) if stage.key == "change" else drawn.fill(stage.says)
    return RoundPage(stage.key, title, text, fields, has_questions=stage.key == "requirements")


def number_label(unit: str) -> str:
    """What a number's field is called: with the units that it takes."""
    return f"number ({', '.join(name or 'a count' for name in UNITS[unit])})"


def _read_board(typed: str, names: Sequence[str]) -> None:
    read_edges(typed, names)


def _keep(sitting: RoundSitting, stage: Stage, filled: Mapping[str, str]) -> None:
    for each in stage.commitments:
        if committed := filled.get(each.key, ""):
            sitting.commits[f"{stage.key}.{each.key}"] = committed
    if board := filled.get(BOARD, ""):
        sitting.draw_board(board)
    if stage.key == "change":
        _believe(sitting, stage, filled)
    sitting.sure[stage.key] = float(filled.get(SURE_OF) or 0.5)
    sitting.said[stage.key] = filled.get(SAY, "")


def _believe(sitting: RoundSitting, stage: Stage, filled: Mapping[str, str]) -> None:
    sitting.beliefs |= {f"{stage.key}.{key}": float(p) for key, p in filled.items() if key.isdigit() and p}


def _push(sitting: RoundSitting, stage: Stage) -> Pages:
    """One pushback, chosen by what was committed; a wrong reply is followed up once."""
    pushback = sitting.pushback(stage)
    if pushback is None:
        return
    drawn = sitting.drawn
    sitting.pushed[stage.key], replies = pushback, sitting.replies.setdefault(stage.key, [])
    options = drawn.options(pushback)
    field = RoundField("reply", "you", options)
    filled = yield RoundPage(f"{stage.key}.pushback", "The interviewer asks back", drawn.fill(pushback.asks), [field])
    if not filled.get("reply"):
        return
    replies.append(filled["reply"])
    if drawn.is_right(pushback, replies[0]):
        return
    comes_back = next(each.because for each in pushback.replies if each.key == replies[0])
    left = {key: says for key, says in options.items() if key != replies[0]}
    field = RoundField("reply", "you", left)
    filled = yield RoundPage(
        f"{stage.key}.follow_up", "The interviewer isn't convinced", drawn.fill(comes_back), [field]
    )
    if filled.get("reply"):
        replies.append(filled["reply"])


def _columns(sitting: RoundSitting) -> Pages:
    """One's own argument against the three columns, stage by stage. Only what has a sentence behind it counts."""
    for area, columns in sitting.drawn.round.rubric.items():
        said = sitting.said.get(area, "")
        if not said:
            continue
        about = "\n".join(f"{name}: {sitting.drawn.fill(text)}" for name, text in zip(COLUMNS, columns))
        fields = [
            RoundField("column", "your argument is", dict(zip(COLUMNS, COLUMNS)), about),
            RoundField("quote", "a sentence of yours that shows it", check=partial(_check_quote, sitting, area)),
        ]
        filled = yield RoundPage(f"columns.{area}", f"Your own grade: {AREAS[area]}", f"You said: {said}", fields)
        if filled.get("column") and filled.get("quote"):
            sitting.grade(area, filled["column"], filled["quote"])


def _check_quote(sitting: RoundSitting, area: str, quote: str) -> None:
    sitting.quoted(area, quote)

"""Candidates who go through a round by themselves: one who knows, one who stuffs, and what lies between."""

from collections.abc import Callable, Mapping
from itertools import permutations

from course.rounds.library import find_round
from course.rounds.pages import BOARD, SAY, SURE_OF, RoundField, RoundPage, pages
from course.rounds.prompt import Decision, DrawnRound, RoundStatement, Stage
from course.rounds.sitting import RoundSitting
from course.rounds.typed import UNITS

Player = Callable[[RoundSitting, RoundPage, RoundField], str]


def play(
    name: str, player: Player, seed: int = 0, questions: Callable[[DrawnRound], list[str]] | None = None
) -> RoundSitting:
    """A whole round. `questions` says which facts are asked for; None = those that matter."""
    sitting = RoundSitting(find_round(name).drawn(seed))
    for key in (questions or useful)(sitting.drawn):
        sitting.ask(key)
    asked, filled = pages(sitting), None
    while True:
        try:
            page = next(asked) if filled is None else asked.send(filled)
        except StopIteration:
            return sitting
        filled = {field.key: field.checked(player(sitting, page, field)) for field in page.fields}


def useful(drawn: DrawnRound) -> list[str]:
    return [fact.key for fact in drawn.round.facts if fact.use == "useful"]


def first_of_the_menu(drawn: DrawnRound) -> list[str]:
    return [fact.key for fact in drawn.menu][: drawn.round.questions]


def staff(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
    """Right throughout, and sure of it."""
    drawn, stage = sitting.drawn, sitting.drawn.stage(page.key.partition(".")[0].replace("columns", "boxes"))
    if page.key.startswith("columns"):
        area = page.key.partition(".")[2]
        return {"column": "staff", "quote": f"what I would say aloud about {area} in this round"}[field.key]
    if field.key == SAY:
        return f"This is what I would say aloud about {page.key} in this round."
    if field.key == SURE_OF:
        return "0.9"
    if field.key == BOARD:
        return "\n".join(f"{start} > {end}" for start, end in drawn.design)
    if page.key.endswith(".statements"):
        return "0.9" if drawn.is_true(_statement(drawn, stage, field)) else "0.1"
    if page.key == "change":
        return "0.9" if drawn.falls(_decision(drawn, field)) else "0.1"
    if field.key == "reply":
        return _right(sitting, sitting.pushed[stage.key].replies, field)
    for number in stage.numbers:
        if number.key == field.key:
            amount = drawn.asked(number)
            unit, scale = next(iter(UNITS[amount.unit].items()))
            return f"{amount.value / scale:.6g} {unit}"
    choice = next(each for each in stage.choices if each.key == field.key)
    return _right(sitting, choice.options, field)


def stuffed(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
    """Every box, every arrow, the first entry of every menu, agrees to all, and sure of it."""
    if field.key == BOARD:
        boxes = [each.key for each in sitting.drawn.round.components]
        return "\n".join(f"{start} > {end}" for start, end in permutations(boxes, 2))
    if field.key == SURE_OF or page.key.endswith(".statements") or page.key == "change":
        return "0.9" if field.options else "All of the above, at scale."
    if field.key == SAY:
        return "We use a scalable, resilient, observable architecture with best practices throughout."
    if page.key.startswith("columns"):
        return "staff" if field.key == "column" else ""
    if field.options:
        return next(iter(field.options))
    stage = sitting.drawn.stage(page.key)
    unit = next(sitting.drawn.asked(each).unit for each in stage.numbers if each.key == field.key)
    return f"1000 {next(iter(UNITS[unit]))}"


def longest(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
    """Knows nothing, and always picks the longest entry of a choice's menu."""
    is_menu = field.options and not page.key.endswith(".statements") and page.key != "change"
    if not is_menu or page.key.startswith("columns"):
        return ""
    return "0.9" if field.key == SURE_OF else max(field.options, key=lambda key: len(field.options[key]))


def silent(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
    return ""


def staff_but(*areas: str) -> Player:
    """Right, and sure, but for areas in which everything is left open."""

    def player(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
        return "" if page.key.partition(".")[0] in areas else staff(sitting, page, field)

    return player


def _right(sitting: RoundSitting, entries: tuple, field: RoundField) -> str:
    assert field.options is not None
    return next((e.key for e in entries if e.key in field.options and sitting.drawn.is_true(e)), "")


def _statement(drawn: DrawnRound, stage: Stage, field: RoundField) -> RoundStatement:
    return drawn.statements(stage)[int(field.key)]


def _decision(drawn: DrawnRound, field: RoundField) -> Decision:
    return drawn.round.change.decisions[int(field.key)]


def only(answers: Mapping[str, str], otherwise: Player = silent) -> Player:
    """By "page.field"; all else as another does."""

    def player(sitting: RoundSitting, page: RoundPage, field: RoundField) -> str:
        return answers.get(f"{page.key}.{field.key}", otherwise(sitting, page, field))

    return player

"""Progress from elsewhere, added to what is kept here: from another machine's start page, or from the site.

Both write one JSON object, the contents by file name (resume.kept_contents, course/lab/view/progress.js). Nothing is
lost by taking one in: of two results of the same thing the better one stays, and what happened is there once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from course.drills import attempts
from course.drills.attempts import Attempts
from course.grading.history import History, events_of
from course.incidents import daily
from course.incidents.daily import DailyResults
from course.incidents.incident import TOLD, Told
from course.lab import progress
from course.lab.json_store import JsonStore
from course.lab.progress import LessonRecord, Progress
from course.lessons.start.cards import SCHEDULE_FILE, ReviewSchedule
from course.napkin import results as sums
from course.napkin.results import SumResults
from course.rounds import history as rounds
from course.rounds.history import PlayedRounds
from minillm.core.errors import MinillmError

Content = TypeVar("Content", bound=BaseModel)
EXERCISES = "exercises.jsonl"
WHERE_FROM = "A copy comes from Save a copy on a start page, or from Export on the site's page Your progress."


class NoProgressError(MinillmError, ValueError):
    """A file isn't what start page or site export, and nothing of it was taken."""


@dataclass(frozen=True)
class Imported(Generic[Content]):
    """One of the files that are taken."""

    store: JsonStore[Content]
    add: Callable[[Content, Content], None]
    """Changes its first argument: what the second one has beyond it is in there, too."""

    def read(self, content: object) -> Content:
        """Raises NoProgressError: the course doesn't write it like this."""
        try:
            return self.store.kind.model_validate(content)
        except ValidationError as error:
            raise NoProgressError(f"Nothing was imported: {self.store.name} in this file is damaged.") from error

    def take(self, theirs: Content) -> None:
        self.store.change(lambda ours: self.add(ours, theirs))


# ---------------------------------------------------------------- file by file


def add_lessons(ours: Progress, theirs: Progress) -> None:
    for number, record in theirs.lessons.items():
        _add_lesson(ours.lessons.setdefault(number, record), record)


def _add_lesson(ours: LessonRecord, theirs: LessonRecord) -> None:
    ours.opened, ours.last = min(ours.opened, theirs.opened), max(ours.last, theirs.last)
    for key, points in theirs.predictions.items():
        scored = [each for each in (points, ours.predictions.get(key)) if each is not None]
        ours.predictions[key] = max(scored, default=None)
    for question, answered in theirs.checks.items():
        if question not in ours.checks or answered.score > ours.checks[question].score:
            ours.checks[question] = answered


def add_done(ours: Attempts | PlayedRounds, theirs: Attempts | PlayedRounds) -> None:
    done: list[Any] = [*ours.done, *(each for each in theirs.done if each not in ours.done)]
    ours.done = sorted(done, key=lambda each: each.when)


def add_incidents(ours: Told, theirs: Told) -> None:
    ours.names += [name for name in theirs.names if name not in ours.names]


def best_days(worth: Callable[[Any], float]) -> Callable[[Any, Any], None]:
    """Adds results by day: the one that's worth more stays, and a day played on its date is one."""

    def add(ours: DailyResults | SumResults, theirs: DailyResults | SumResults) -> None:
        for day, result in theirs.days.items():
            mine = ours.days.get(day, result)
            on_the_day = mine.on_the_day or result.on_the_day
            ours.days[day] = max(mine, result, key=worth).model_copy(update={"on_the_day": on_the_day})

    return add


def add_cards(ours: ReviewSchedule, theirs: ReviewSchedule) -> None:
    """The later review of a card that was reviewed in both places stays: it's what is remembered now."""
    ours.opted_in = ours.opted_in or theirs.opted_in
    for key, card in theirs.cards.items():
        if key not in ours.cards or _reviewed(card) > _reviewed(ours.cards[key]):
            ours.cards[key] = card


def _reviewed(card: str) -> float:
    """When it was reviewed last, from FSRS's JSON; 0 if that can't be read."""
    try:
        return datetime.fromisoformat(json.loads(card)["last_review"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return 0.0


FILES: tuple[Imported[Any], ...] = (
    Imported(progress.FILE, add_lessons),
    Imported(SCHEDULE_FILE, add_cards),
    Imported(attempts.FILE, add_done),
    Imported(rounds.FILE, add_done),
    Imported(TOLD, add_incidents),
    Imported(daily.RESULTS, best_days(lambda result: result.score)),
    Imported(sums.RESULTS, best_days(lambda result: result.right)),
)
"""Besides exercises.jsonl. What the other machine measured of itself, and what was typed there, isn't taken."""


# ---------------------------------------------------------------- all of it


def bring_in(text: bytes) -> str:
    """Take in what start page or site exported. Returns what was taken, in a sentence.

    Raises:
        NoProgressError: it's something else, or a part of it is damaged; nothing is changed then.
    """
    held = _held(text)
    events = _events(held[EXERCISES]) if EXERCISES in held else []
    read = [(each, each.read(held[each.store.name])) for each in FILES if each.store.name in held]
    trouble = History().add_events(events)
    for file, content in read:
        file.take(content)
    taken = [each.store.name for each, _ in read] + [EXERCISES] * (EXERCISES in held)
    left = [name for name in held if name not in taken]
    told = [f"Imported: {', '.join(taken)}. Run this page's cells again to see it."]
    if left:
        told.append(f"Left out, since it was measured or typed on the other machine: {', '.join(left)}.")
    return " ".join([*told, *([trouble] if trouble else [])])


def _held(text: bytes) -> Mapping[str, Any]:
    """An export's contents by file name."""
    try:
        held = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise NoProgressError(f"Nothing was imported: this file isn't JSON. {WHERE_FROM}") from error
    known = {EXERCISES, *(each.store.name for each in FILES)}
    if not isinstance(held, dict) or known.isdisjoint(held):
        raise NoProgressError(f"Nothing was imported: this file holds no progress of this course. {WHERE_FROM}")
    return held


def _refused(constant: str) -> NoReturn:
    """NaN and the infinities, which JSON has no words for."""
    raise ValueError(constant)


def _events(content: object) -> list[dict[str, Any]]:
    """Lines of a history; a single one has been parsed by the export. Raises NoProgressError: none can be read."""
    text = content if isinstance(content, str) else json.dumps(content)
    events = list(events_of(text.encode()))
    if text.strip() and not events:
        raise NoProgressError(f"Nothing was imported: {EXERCISES} in this file is damaged.")
    return events

"""Review cards, and when each is due: the FSRS schedule (`fsrs`, the one that Anki uses), kept on this machine."""

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import fsrs
from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel
from course.lessons.start.contents import anchor, lessons

RATINGS = {rating.name: rating for rating in fsrs.Rating}


@dataclass(frozen=True)
class Card:
    """One fact to remember."""

    key: str
    """Stays the same when its words change, so that a schedule survives a new edition."""
    lesson: str
    """Number of the lesson that shows it."""
    heading: str
    """Where in it."""
    question: str
    answer: str | Callable[[], str]
    """A number is computed when it is asked for, never written down."""

    @property
    def answer_text(self) -> str:
        return self.answer if isinstance(self.answer, str) else self.answer()

    @property
    def link(self) -> str:
        """To the lesson; the lesson's number alone if it is not in this copy of the course."""
        lesson = lessons().get(self.lesson)
        return f"{lesson.file}#{anchor(self.heading)}" if lesson else ""


class Schedule(StoredModel):
    """What is kept of the reviews."""

    opted_in: bool = False
    cards: dict[str, str] = Field(default_factory=dict)
    """By key: FSRS's own JSON of a card that was reviewed."""


FILE = JsonStore("cards.json", Schedule)


class Deck:
    """The cards and their schedule.

    Args:
        cards: in the order in which new ones are shown.
        new_at_once: of cards never seen, at most so many at a sitting: reviews should stay short.
    """

    def __init__(self, cards: Sequence[Card], kept: JsonStore[Schedule] = FILE, new_at_once: int = 10) -> None:
        self.cards = {card.key: card for card in cards}
        self.new_at_once = new_at_once
        self._kept = kept
        self._scheduler = fsrs.Scheduler(enable_fuzzing=False)
        self._schedule = Schedule()
        self._was_there = False

    @property
    def opted_in(self) -> bool:
        return self._current.opted_in

    @property
    def _current(self) -> Schedule:
        """What is kept: in the file, or where none is read or written, in memory. One that is gone has been erased."""
        there = os.path.exists(self._kept.path)  # Path.exists raises where the home cannot be entered
        if there:
            self._schedule = self._kept.read_or(self._schedule)
        elif self._was_there:
            self._schedule = Schedule()
        self._was_there = there
        return self._schedule

    def opt_in(self) -> None:
        """From now on reviews are kept."""
        self._change(lambda schedule: setattr(schedule, "opted_in", True))

    def due(self, now: datetime | None = None) -> list[Card]:
        """What to review now: what has been seen and is due, longest overdue first, then some that are new.

        Args:
            now: with a time zone; None = this moment.
        """
        now = now or datetime.now(UTC)
        kept = self._current.cards
        seen = {key: self._seen(key, kept) for key in self.cards if key in kept}
        ready = sorted((state.due, key) for key, state in seen.items() if state is not None and state.due <= now)
        new = [key for key in self.cards if seen.get(key) is None][: self.new_at_once]
        return [self.cards[key] for key in (*(key for _, key in ready), *new)]

    def review(self, key: str, rating: str, now: datetime | None = None) -> datetime:
        """Take down how well it was remembered, one of RATINGS.

        Returns:
            When it is due again.
        """
        state = self._seen(key, self._current.cards) or fsrs.Card(card_id=list(self.cards).index(key))
        state, _ = self._scheduler.review_card(state, RATINGS[rating], now or datetime.now(UTC))
        self._change(lambda schedule: schedule.cards.__setitem__(key, state.to_json()))
        return state.due

    def as_csv(self) -> str:
        """For Anki (File, Import): question, answer, lesson. Fields are separated by commas, as the first line says."""
        out = io.StringIO()
        out.write("#separator:Comma\n#columns:Front,Back,Tags\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows((c.question, c.answer_text, f"minillm::lesson-{c.lesson}") for c in self.cards.values())
        return out.getvalue()

    @staticmethod
    def _seen(key: str, kept: Mapping[str, str]) -> fsrs.Card | None:
        """Its state; None if it was never seen, or what was kept cannot be read."""
        try:
            return fsrs.Card.from_json(kept[key])
        except (KeyError, ValueError, TypeError):
            return None

    def _change(self, how: Callable[[Schedule], None]) -> None:
        how(self._current)
        self._kept.change(how)

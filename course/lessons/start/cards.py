"""Review cards, and when each is due: the FSRS schedule (`fsrs`, the one that Anki uses), kept on this machine."""

import csv
import io
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import fsrs
from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel
from course.lab.model_shape import LLAMA_13B, LLAMA_70B
from course.lab.queueing import md1_wait
from course.lab.roof import on_paper
from course.lab.speculation_gain import emitted
from course.lab.style import number, seconds
from course.lessons.start.contents import lessons
from course.napkin.library import TEMPLATES, Template, drawn_from
from course.simulator.cost.models import find_model
from course.simulator.cost.profile import find_profile

RATINGS = {rating.name: rating for rating in fsrs.Rating}


@dataclass(frozen=True)
class Card:
    """One fact to remember."""

    key: str
    """Stays the same when its words change, so that a schedule survives a new edition."""
    lesson: str
    """Number of the lesson that shows it."""
    heading: str
    """Where in it; empty = anywhere."""
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
        return lesson.link(self.heading) if lesson else ""


class ReviewSchedule(StoredModel):
    """What is kept of the reviews."""

    opted_in: bool = False
    cards: dict[str, str] = Field(default_factory=dict)
    """By key: FSRS's own JSON of a card that was reviewed."""


SCHEDULE_FILE = JsonStore("cards.json", ReviewSchedule)


class Deck:
    """The cards and their schedule.

    Args:
        cards: in the order in which new ones are shown.
        new_at_once: of cards never seen, at most so many at a sitting: reviews should stay short.
    """

    def __init__(
        self, cards: Sequence[Card], kept: JsonStore[ReviewSchedule] = SCHEDULE_FILE, new_at_once: int = 10
    ) -> None:
        self.cards = {card.key: card for card in cards}
        self.new_at_once = new_at_once
        self._kept = kept
        self._scheduler = fsrs.Scheduler(enable_fuzzing=False)
        self._schedule = ReviewSchedule()
        self._was_there = False

    @property
    def opted_in(self) -> bool:
        return self._current.opted_in

    @property
    def _current(self) -> ReviewSchedule:
        """What is kept: in the file, or where none is read or written, in memory. One that is gone has been erased."""
        there = os.path.exists(self._kept.path)  # Path.exists raises where the home cannot be entered
        if there:
            self._schedule = self._kept.read_or(self._schedule)
        elif self._was_there:
            self._schedule = ReviewSchedule()
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

    def _change(self, how: Callable[[ReviewSchedule], None]) -> None:
        how(self._current)
        self._kept.change(how)


# ---------------------------------------------------------------- the cards
# The course's key facts. Numbers come from the formulas that the lessons show.

CHAT = 1500
"""Tokens of a chat in these cards: prompt and answer."""


def waits() -> str:
    told = ", ".join(f"{load:.0%}: {number(md1_wait(load))}" for load in (0.5, 0.8, 0.95))
    return f"In service times, M/D/1: {told}. It grows with load / (1 - load)."


def crossover() -> str:
    model = find_model("llama-3-70b")
    half = model.layer_params / (model.layers * model.query_size)
    told = f"about {round(half, -3):,.0f} tokens"
    return f"At P / (layers x heads x head size): {told}. Far below that a prompt is nearly linear."


def floor() -> str:
    shortest = seconds(on_paper(gpus=4).reading(LLAMA_70B.weight_bytes))
    return (
        f"Bytes of weights over bandwidth: {number(LLAMA_70B.weight_bytes / 1e9)} GB over four times "
        f"{number(on_paper().bandwidth / 1e12)} TB/s is {shortest}. No step is shorter; launches and links add to it."
    )


def kv_of_a_chat() -> str:
    each = LLAMA_70B.kv_bytes_per_token
    formula = "2 x layers x KV heads x head size x bytes"
    return f"{formula} = {each:,} B a token: {CHAT * each / 1e6:.0f} MB for {CHAT:,} tokens."


def kv_border() -> str:
    told = ", ".join(f"{m.name} ({m.kind}) {m.crossover_tokens:,.0f}" for m in (LLAMA_13B, LLAMA_70B))
    return f"Weight bytes over KV bytes a token, over all contexts together: {told} tokens in 16 bits."


def ridge() -> str:
    return (
        f"FLOP/s over bytes/s: {number(on_paper().ridge)} for an H100 by its data sheet. Below it, memory is the limit."
    )


def drafts() -> str:
    return (
        f"1 + a + ... + a^k = {number(emitted(0.6, 4))} tokens for a = 0.6, k = 4. Not k x a: the first rejection "
        "ends it, and even then one token comes out. Divide by what drafting and checking cost."
    )


def demand() -> str:
    qps, prompt, gpus, mfu = 100, CHAT, 4, find_profile("h100-sxm").constants.mfu
    needs = 2 * find_model("llama-3-70b").layer_params * prompt * qps
    has = gpus * on_paper().flops * mfu
    return (
        f"Prefill alone: 2 x P x tokens/s = {needs:.1e} FLOP/s, and four H100s have {has:.1e} at an MFU of "
        f"{mfu:.0%}: {needs / has:.0f} times what they can do. No setting changes that."
    )


ANSWERS: dict[str, Callable[[], str]] = {
    answer.__name__: answer for answer in (waits, crossover, floor, ridge, kv_border, kv_of_a_chat, drafts, demand)
}


def read_cards(file: Path) -> tuple[Card, ...]:
    """The cards of a TOML file; answers that are numbers are computed by ANSWERS when they are asked for."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["card"]
    return tuple(
        Card(row["key"], row["lesson"], row["heading"], row["question"], row.get("answer") or ANSWERS[row["answer_by"]])
        for row in rows
    )


CARDS = read_cards(Path(__file__).with_name("cards.toml"))


# ---------------------------------------------------------------- sums among them

CARDS_A_SUM = 2
"""So many facts, then a sum."""


def sum_card(template: Template, day: date) -> Card:
    """A napkin sum: what comes back when it's due is the formula; its numbers are another day's."""
    drawn = drawn_from(template, f"{template.__name__} {day}")
    answer = "\n".join([f"{drawn.told}.", *drawn.working])
    question = f"{drawn.question} (Within 20% counts as known.)"
    return Card(f"sum {template.__name__}", drawn.lesson, "", question, answer)


def cards_of(day: date) -> tuple[Card, ...]:
    """All cards of a day, with a sum after each CARDS_A_SUM of the others; what sums are left come last."""
    facts, sums = list(CARDS), [sum_card(template, day) for template in TEMPLATES]
    found: list[Card] = []
    while facts or sums:
        found += [*facts[:CARDS_A_SUM], *sums[:1]]
        del facts[:CARDS_A_SUM], sums[:1]
    return tuple(found)

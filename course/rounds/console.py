"""A round one step at a time: a JSON state for each, and actions, JSON as well, that go on to the next.

It draws nothing: on a page the tab's own Python makes the states (course/tab/rounds.py), and course/lab/view/round.js
draws them. What a state holds is written down where it's read, in course/lab/view/round_types.js.

    session = RoundSession(find_round("weights").drawn())
    session.act({"do": "start"})
    session.act({"do": "go_on", "filled": {"say": "First I'd ask how many nodes there are."}})
"""

import time
from collections.abc import Callable
from typing import Any

from course.drills.clock import written
from course.grading.actions import Fields, checked
from course.rounds.errors import CommitmentError
from course.rounds.judge import LEVELS, AreaResult, JudgedItem, judge
from course.rounds.pages import BOARD, Pages, RoundField, RoundPage, pages
from course.rounds.prompt import AREAS, COLUMNS, DrawnRound
from course.rounds.report import UNREAD, sample_text
from course.rounds.sitting import RoundSitting

State = dict[str, Any]
"""JSON-able; round_types.js says what's in it."""
FIELDS: Fields = {"look": {}, "start": {}, "ask": {"fact": str}, "go_on": {"filled": dict}}
"""What each action brings along; what is left out is empty."""


class RoundSession:
    """One round, sat by actions.

    Args:
        now: seconds, from a clock that only goes forward.
    """

    def __init__(self, drawn: DrawnRound, now: Callable[[], float] = time.monotonic) -> None:
        self.sitting, self.is_over = RoundSitting(drawn), False
        self._now = now
        self._began: float | None = None
        self._pages: Pages = pages(self.sitting)
        self._page: RoundPage | None = None

    def act(self, action: object) -> State:
        """Do something, and see what there is then.

        Args:
            action: {"do": one of FIELDS, and its fields}.
        Raises:
            CommitmentError: it's no action, comes out of turn, or can't be read; nothing has changed then.
        """
        do, given = checked(action, FIELDS, CommitmentError)
        getattr(self, f"_{do}")(**given)
        return self.state()

    def _look(self) -> None:
        """Nothing changes."""

    def _start(self) -> None:
        if self._began is None:
            self._began, self._page = self._now(), next(self._pages)

    def _ask(self, fact: str) -> None:
        if self._began is None or self.sitting.seconds is not None:
            raise CommitmentError("facts are told while the clock runs")
        self.sitting.ask(fact)

    def _go_on(self, filled: dict[str, str]) -> None:
        if self._page is None:
            raise CommitmentError("there is no step to go on from: start the clock first, or it's over")
        fields = {field.key: field for field in self._page.fields}
        if unknown := [key for key in filled if key not in fields]:
            raise CommitmentError(f"this step asks for nothing called {unknown[0]!r}")
        said = {key: field.checked(filled.get(key, "")) for key, field in fields.items()}
        assert self._began is not None, "a step is open"
        try:
            self._page = self._pages.send(said)
        except StopIteration:
            self._page, self.is_over = None, True
        if self.sitting.seconds is None and (self._page is None or self._page.key.startswith("columns")):
            self.sitting.seconds = self._now() - self._began  # one's own grade isn't on the clock

    # ---------------------------------------------------------------- what there is

    def state(self) -> State:
        """All that is shown, as of now."""
        drawn, began, seconds = self.sitting.drawn, self._began, self.sitting.seconds
        used = 0.0 if began is None else self._now() - began if seconds is None else seconds
        return {
            "title": drawn.round.title,
            "steps": self._steps(),
            "at": self._at(),
            "clock": {
                "total": 60 * drawn.round.minutes,
                "used": used,
                "state": "waiting" if began is None else "running" if seconds is None else "stopped",
            },
            "opening": "" if began is None else drawn.fill(drawn.round.opening),
            "asking": {
                "options": [] if began is None else [{"id": each.key, "name": each.asks} for each in drawn.menu],
                "told": [{"asks": drawn.fact(key).asks, "says": self.sitting.ask(key)} for key in self.sitting.asked],
                "left": self.sitting.questions_left,
            },
            "page": None if self._page is None else self._shown(self._page),
            "report": self._report() if self.is_over else None,
        }

    def _steps(self) -> list[str]:
        return ["Context", *AREAS.values(), "Your own grade", "Verdict"]

    def _at(self) -> int:
        if self._page is None:
            return len(self._steps()) - 1 if self.is_over else 0
        area = self._page.key.partition(".")[0]
        return 1 + (list(AREAS).index(area) if area in AREAS else len(AREAS))

    def _shown(self, page: RoundPage) -> State:
        boxes = [{"id": each.key, "name": each.name} for each in self.sitting.drawn.round.components]
        return {
            "key": page.key,
            "title": page.title,
            "text": page.text,
            "fields": [_shown_field(field) for field in page.fields],
            "boxes": boxes if BOARD in {field.key for field in page.fields} else [],
        }

    def _report(self) -> State:
        sitting, verdict = self.sitting, judge(self.sitting)
        drawn, weakest = sitting.drawn, min(verdict.areas, key=lambda each: each.mean)
        assert sitting.seconds is not None, "it is over"
        return {
            "took": f"You took {written(sitting.seconds)} of {drawn.round.minutes}:00.",
            "level": verdict.level,
            "levels": LEVELS,
            "told": f"On what can be computed: {verdict.told()}",
            "areas": [_shown_area(each) for each in verdict.areas],
            "helped": [_shown_item(each) for each in verdict.helped()],
            "hurt": [_shown_item(each) for each in verdict.hurt()],
            "unread": UNREAD,
            "own": [
                {"area": AREAS[area], "column": column, "quote": quote} for area, (column, quote) in sitting.own.items()
            ],
            "again": {"area": AREAS[weakest.area], "says": drawn.fill(drawn.round.rubric[weakest.area][-1])},
            "columns": COLUMNS,
            "rubric": [
                {"area": AREAS[area], "says": list(map(drawn.fill, texts))}
                for area, texts in drawn.round.rubric.items()
            ],
            "sample": sample_text(drawn),
        }


def _shown_field(field: RoundField) -> State:
    """One thing to fill in; options None = free text."""
    options = None if field.options is None else [{"id": key, "name": name} for key, name in field.options.items()]
    return {"key": field.key, "label": field.label, "options": options, "about": field.about, "long": field.is_long}


def _shown_area(area: AreaResult) -> State:
    items = [_shown_item(each) for each in area.items]
    return {"area": AREAS[area.area], "level": area.level, "counted": area.counted, "items": items}


def _shown_item(item: JudgedItem) -> State:
    return {"area": AREAS[item.area], "about": item.about, "right": item.right, "told": item.told}

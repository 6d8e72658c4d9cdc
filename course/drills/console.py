"""A drill one step at a time: a JSON state for each, and actions, JSON as well, that go on to the next.

It draws nothing and knows no widget: a notebook ferries states and actions to the browser (desk.py), and on a page the
tab's own Python makes them (course/tab/drills.py). What a state holds is written down where it's read, in
course/lab/view/drill_types.js.

    session = DrillSession(find_drill("p99-8s").drawn())
    session.act({"do": "start"})
    session.act({"do": "hand_in", "text": "The queue."})      # the state after it: the commit is asked for
    session.act({"do": "go_on", "filled": {"dominant": "queue"}})
"""

import os
import time
from collections.abc import Callable
from typing import Any

from course.drills.attempts import attempt_of, keep
from course.drills.drill import BARS, DrawnDrill
from course.drills.interviewer import QUESTIONS
from course.drills.library import number_of
from course.drills.sitting import Sitting, solution_text
from course.drills.stages import OF_ONESELF, PARTS, DrillStage, Field, Stages, stages
from course.drills.talk import talk_of
from course.grading.actions import Fields, checked
from minillm.core.errors import MinillmError

State = dict[str, Any]
"""JSON-able; drill_types.js says what's in it."""
FIELDS: Fields = {
    "look": {},
    "start": {},
    "ask": {"fact": str},
    "hand_in": {"text": str},
    "go_on": {"filled": dict},
}
"""What each action brings along; what is left out is empty."""
JUDGE_URL = "MINILLM_JUDGE_URL"
"""Environment variable: the endpoint of a judge model that is asked without being told to."""


class DrillError(MinillmError, ValueError):
    """What was asked of a drill does not exist, or comes out of turn."""


class DrillSession:
    """One drill, sat by actions.

    Args:
        is_graded: by the learner, too; else it is over after the statements.
        now: seconds, from a clock that only goes forward.
        judge_url: of a judge model's OpenAI API, asked at the end; "" = none is; None = MINILLM_JUDGE_URL's, if set.
    """

    def __init__(
        self,
        drill: DrawnDrill,
        is_graded: bool = True,
        now: Callable[[], float] = time.monotonic,
        judge_url: str | None = None,
    ) -> None:
        self.sitting, self.is_over = Sitting(drill), False
        self._is_graded, self._now, self._judge_url = is_graded, now, judge_url
        self._began: float | None = None
        self._stages: Stages = stages(self.sitting, is_graded)
        self._stage: DrillStage | None = None

    def act(self, action: object) -> State:
        """Do something, and see what there is then.

        Args:
            action: {"do": one of FIELDS, and its fields}.
        Raises:
            DrillError: it's no action, comes out of turn, or names what doesn't exist.
        """
        do, given = checked(action, FIELDS, DrillError)
        getattr(self, f"_{do}")(**given)
        return self.state()

    # ---------------------------------------------------------------- actions

    def _look(self) -> None:
        """Nothing changes."""

    def _start(self) -> None:
        if self._began is None:
            self._began = self._now()

    def _ask(self, fact: str) -> None:
        self._must_run("asked")
        if fact not in {each.key for each in talk_of(self.sitting.drill).facts}:
            named = f"there is no question {fact!r}" if fact else "no question is chosen"
            raise DrillError(f"{named}: take one from the menu (typing a word narrows it down)")
        if fact in self.sitting.asked:
            return
        if len(self.sitting.asked) == QUESTIONS:
            raise DrillError(f"you may ask {QUESTIONS} questions, and have")
        self.sitting.asked = (*self.sitting.asked, fact)

    def _hand_in(self, text: str) -> None:
        self._must_run("handed in")
        if not text.strip():
            raise DrillError("nothing is written yet, so there's nothing to grade; the clock's running")
        assert self._began is not None, "the clock runs"
        self.sitting.text, self.sitting.seconds = text, self._now() - self._began
        self._stage = next(self._stages)

    def _must_run(self, done: str) -> None:
        if self._began is None:
            raise DrillError(f"nothing is {done} before the clock runs: start it first")
        if self.sitting.text:
            raise DrillError(f"nothing more is {done}: the answer is handed in")

    def _go_on(self, filled: dict[str, str]) -> None:
        stage = self._stage
        if stage is None:
            raise DrillError("there is nothing to go on from: hand in first, or it's over")
        fields = {field.key: field for field in stage.fields}
        said = {key: filled.get(key, "").strip() for key in fields}
        for key, words in filled.items():
            if key not in fields:
                raise DrillError(f"this step asks for nothing called {key!r}")
            options = fields[key].options
            if options is not None and words and words not in options:
                raise DrillError(f"{fields[key].label} can't be {words!r}")
        if stage.part == "Commit" and not any(said.values()):
            raise DrillError("commit to something first: a guess that's wrong costs nothing more than none")
        try:
            self._stage = self._stages.send(said)
        except StopIteration:
            self._stage, self.is_over = None, True
            self._hear_a_judge()
            keep(attempt_of(self.sitting))

    def _hear_a_judge(self) -> None:
        """If there is one; it grades the samples first, so this takes a while."""
        url = os.environ.get(JUDGE_URL, "") if self._judge_url is None else self._judge_url
        if not url:
            return
        from course.drills import judge  # its HTTP client takes long to import, and a browser has none

        model = os.environ.get(judge.MODEL, judge.DEFAULT)
        self.sitting.heard = judge.hear(self.sitting.drill, self.sitting.text, url, model)

    # ---------------------------------------------------------------- what there is

    def state(self) -> State:
        """All that is shown, as of now."""
        drill, began = self.sitting.drill, self._began
        used = 0.0 if began is None else self._now() - began if self.sitting.seconds is None else self.sitting.seconds
        facts = talk_of(drill).facts
        return {
            "title": f"Drill {number_of(drill.drill)}",
            "steps": self._steps(),
            "at": self._at(),
            "clock": {
                "total": 60 * drill.drill.minutes,
                "used": used,
                "state": "waiting" if began is None else "running" if self.sitting.seconds is None else "stopped",
            },
            "prompt": "" if began is None else drill.prompt,
            "text": self.sitting.text,
            "asking": {
                "options": [] if began is None else [{"id": each.key, "name": each.asks} for each in facts],
                "told": [{"asks": each.asks, "says": each.says} for each in self.sitting.facts],
                "left": QUESTIONS - len(self.sitting.asked),
            },
            "stage": None if self._stage is None else shown_stage(self._stage),
            "verdict": self._verdict() if self.is_over else None,
        }

    def _steps(self) -> list[str]:
        """Their names; disputes and a paragraph to write again come only where there is something to them."""
        left_out = {"Disputes", "Once more", *(() if self._is_graded else OF_ONESELF)}
        if self._stage is not None:
            left_out.discard(self._stage.part)
        return steps_of([part for part in PARTS if part not in left_out])

    def _at(self) -> int:
        if self.is_over:
            return len(self._steps()) - 1
        return self._steps().index(self._stage.part) if self._stage else int(self._began is not None)

    def _verdict(self) -> State:
        sitting = self.sitting
        return {
            "tags": sitting.drill.drill.tags,
            "headline": sitting.headline,
            "level": sitting.standing.level,
            "levels": list(BARS),
            "answer": sitting.standing.answer,
            "understanding": sitting.standing.understanding,
            "rows": [{"name": name, "lines": lines} for name, lines in sitting.rows()],
            "graders": [{"name": name, "says": said} for name, said in sitting.graders().items()],
            "solution": solution_text(sitting.drill),
        }


def steps_of(parts: list[str]) -> list[str]:
    """All of a drill: what comes before those parts, they, and the verdict."""
    return ["Context", "Write", *parts, "Verdict"]


def shown_stage(stage: DrillStage) -> State:
    """What a step says, and what it asks for."""
    return {
        "part": stage.part,
        "title": stage.title,
        "text": stage.text,
        "fields": [shown_field(field) for field in stage.fields],
    }


def shown_field(field: Field) -> State:
    """One thing to fill in; options None = free text."""
    options = None if field.options is None else [{"id": key, "name": name} for key, name in field.options.items()]
    return {"key": field.key, "label": field.label, "options": options, "about": field.about, "long": field.is_long}

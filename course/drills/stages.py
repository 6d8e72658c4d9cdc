"""What a drill asks after the writing, stage by stage: the same in a notebook and in a terminal."""

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from course.drills import calibrate
from course.drills.checks import RANKS
from course.drills.clock import written
from course.drills.drill import LEVELS, Commit
from course.drills.sitting import Sitting, off_text
from course.drills.stated import menu
from minillm.frontend.terminal import Lines, fitted

END = "."
"""A line with nothing else ends an answer."""


@dataclass(frozen=True)
class Field:
    """One thing to fill in; empty is left out."""

    key: str
    label: str
    options: Mapping[str, str] | None = None
    """What can be chosen, by what it is called; None = free text."""
    about: str = ""


@dataclass(frozen=True)
class DrillStage:
    """Some text, and what is asked about it."""

    title: str
    text: str
    fields: Sequence[Field]


Stages = Generator[DrillStage, dict[str, str], None]


def stages(sitting: Sitting, is_graded: bool = True) -> Stages:
    """Commit, pushback, two samples, then oneself. Each stage is sent what was filled in, by key."""
    drill, causes, fixes = sitting.drill, menu("causes"), menu("techniques")
    choice = dict(zip(LEVELS, LEVELS))
    levels = [Field(each.key, each.name, choice, each.with_anchors()) for each in drill.rubric.criteria]
    if sitting.commit == Commit():
        ranks = [Field(f"fix {rank}", f"fix {rank}", fixes) for rank in range(1, len(RANKS) + 1)]
        fields = [Field("dominant", "what dominates", causes), Field("second", "the second problem", causes)]
        number = Field("number", "the number, with its unit", about=drill.rubric.commit.number.asks)
        said = yield DrillStage("Commit", "", [*fields, number, *ranks])
        ranked = tuple(dict.fromkeys(said[each.key] for each in ranks if said[each.key]))
        sitting.commit = Commit(dominant=said["dominant"], second=said["second"], number=said["number"], fixes=ranked)
    said = yield DrillStage("The interviewer asks", "", [Field(asks, "you", about=asks) for asks in sitting.follow_ups])
    sitting.replies = {asks: reply for asks, reply in said.items() if reply}
    if is_graded:
        grades = {}
        for label, name in calibrate.samples(drill).items():
            said = yield DrillStage(f"Grade this first: answer {label}", drill.answers[name], levels)
            grades[label] = {key: level for key, level in said.items() if level}
        sitting.samples = grades
        own = [part for each in levels for part in (each, Field(f"{each.key} quote", "a sentence of yours for it"))]
        said = yield DrillStage("Now your own, with a sentence of yours for each", off_text(sitting.calibration), own)
        sitting.own_written = {
            each.key: (said[each.key], said[f"{each.key} quote"]) for each in levels if said[each.key]
        }


class Terminal:
    """Asks for all of it in a terminal, or of a script's standard input.

    Args:
        is_quiet: standard output is kept for JSON; prompts go to standard error.
    """

    def __init__(self, is_quiet: bool = False) -> None:
        self._screen = sys.stderr if is_quiet else sys.stdout
        self._lines = Lines("drill", [*menu("causes"), *menu("techniques"), *LEVELS], self._screen)

    def say(self, text: str) -> None:
        print(fitted(text, self._screen), file=self._screen, flush=True)

    def write(self, sitting: Sitting) -> None:
        """Show the prompt, start the clock, and read an answer."""
        drill, began, lines = sitting.drill, time.monotonic(), []
        self.say(f"{drill.drill.title} ({drill.drill.minutes} minutes)\n\n{drill.prompt}\n")
        self.say(f"The clock runs. Write your answer; a line with nothing but {END!r} ends it.")
        while (line := self._lines.read("")) is not None and line.strip() != END:
            lines.append(line.rstrip("\n"))
        sitting.text, sitting.seconds = "\n".join(lines), time.monotonic() - began
        self.say(f"On the clock: {written(sitting.seconds)} of {written(60 * drill.drill.minutes)}.")

    def go_through(self, asked: Stages) -> None:
        """All stages, to the end."""
        filled: dict[str, str] | None = None
        menus: set[str] = set()
        while True:
            try:
                stage = next(asked) if filled is None else asked.send(filled)
            except StopIteration:
                return
            self.say(f"\n{stage.title}\n{stage.text}")
            filled = {field.key: self._fill_in(field, menus) for field in stage.fields}

    def _fill_in(self, field: Field, menus: set[str]) -> str:
        """Ask until it is one of the options, or empty. A menu is shown once."""
        if field.about:
            self.say(f"\n{field.about}")
        options = field.options or {}
        if (names := ", ".join(options)) and names not in menus and not field.about:
            menus.add(names)
            self.say(f"one of: {names}")
        while typed := (self._lines.read(f"{field.label}: ") or "").strip():
            if field.options is None or typed in options:
                break
            self.say(f"no {typed!r} here: {names}")
        return typed

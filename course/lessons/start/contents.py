"""What lessons there are, read off their sources, and how long they take; four orders to take them in."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from course.lab.build import COURSE, lesson_sources, read_source
from minillm.core.timeline import PHASES

WORDS_A_MINUTE = 180
"""Adults read 240 words of plain English a minute (Brysbaert, 2019); technical text, with pictures, goes slower."""
MINUTES_A_CELL = 0.75
"""To run a cell, look at what it shows and try it: between what two readers took, one new to serving, one not."""
MINUTES_A_BET = 1.0
"""To think before a prediction is locked."""
MINUTES_A_QUESTION = 2.0
"""To answer a question of a check."""
CARD = "check.card()"
"""A cell with it shows the questions of the lesson's check.py."""
QUESTION = re.compile(r'"(q\d+)": Question\(')
BET = re.compile(r"lab\.predict\(\s*\"(\w+)\"")
"""A cell with it asks for a prediction of that key."""
SECTION = re.compile(r"^## (.+)$", re.M)
HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$", re.M)
SURFACE, GUIDED, DEEP = "Five minutes", "The lab", "Going deeper"
SAY, CHECK = "In the interview", "Check yourself"
EARLIER = {"Surface": SURFACE, "Guided": GUIDED, "Deep dive": DEEP, "Say it in an interview": SAY}
"""What these sections were called before."""
HOW_ESTIMATED = (
    f"Estimated from the lesson's own text: {WORDS_A_MINUTE} words a minute, three quarters of a minute for each "
    f"cell that you run, {MINUTES_A_BET:g} for each prediction, {MINUTES_A_QUESTION:g} for each question of a check, "
    "and what a drill or an incident takes. The mock interview of lesson 13 isn't counted."
)


def plain(heading: str) -> str:
    """A heading as it is shown, without its Markdown."""
    return re.sub(r"[*`]|\\(?=.)", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip()


def anchor(heading: str) -> str:
    """The part of a link behind `#` that leads to a heading of a notebook: JupyterLab's way, and nbviewer's."""
    return plain(heading).replace(" ", "-")


PHASES_OF = {
    **dict.fromkeys(("02", "02b", "11", "11b"), ("queue",)),
    **dict.fromkeys(("03", "04"), ("prefill",)),
    "05": ("queue", "prefill", "first_token"),
    "05b": ("prefill", "decode"),
    **dict.fromkeys(("06", "06b", "06c", "08", "09"), ("decode",)),
    **dict.fromkeys(("07", "07b"), ("queue", "decode")),
    "10": ("first_token", "stream"),
    "10b": ("stream",),
    "10c": ("queue", "stream"),
}
"""By lesson: the phases it's about, where it isn't about all of them."""


@dataclass(frozen=True)
class Lesson:
    """One lesson, as its source has it."""

    source: Path

    @property
    def number(self) -> str:
        return self.source.stem.partition("_")[0]

    @property
    def phases(self) -> tuple[str, ...]:
        return PHASES_OF.get(self.number, PHASES)

    @property
    def file(self) -> str:
        return f"{self.source.stem}.ipynb"

    @cached_property
    def cells(self) -> list[tuple[str, str]]:
        """(kind, source) of each cell, in order: cell i has the id "cell-i" in the notebook."""
        return [(cell.cell_type, cell.source) for cell in read_source(self.source).cells]

    @cached_property
    def title(self) -> str:
        """Without its number."""
        return plain(self.headings[0]).partition("·")[2].strip()

    @cached_property
    def headings(self) -> list[str]:
        return [found for kind, text in self.cells if kind == "markdown" for _, found in HEADING.findall(text)]

    @cached_property
    def bets(self) -> dict[str, int]:
        """Each prediction's key, and the index of its cell."""
        return {key: i for i, (kind, text) in enumerate(self.cells) if kind == "code" for key in BET.findall(text)}

    @cached_property
    def questions(self) -> dict[str, int]:
        """Each question of its check, and the index of the cell with its card."""
        places = [i for i, (kind, text) in enumerate(self.cells) if kind == "code" and CARD in text]
        asked = self.source.parent / "lessons" / f"lesson_{self.number}" / "check.py"
        return {key: i for i in places for key in QUESTION.findall(asked.read_text())}

    def minutes(self, *sections: str) -> float:
        """Estimated time for these sections (## headings), or for all; what stands above the first always counts."""
        total, section = 0.0, ""
        for kind, text in self.cells:
            pieces = SECTION.split(text) if kind == "markdown" else [text]
            for place, piece in enumerate(pieces):
                if kind == "markdown" and place % 2:
                    section = EARLIER.get(plain(piece), plain(piece))
                elif not sections or not section or section in sections:
                    total += _minutes(kind, piece) + MINUTES_A_QUESTION * (CARD in piece) * len(self.questions)
        return total

    def link(self, heading: str = "") -> str:
        """To a heading of it, by its name of today or its earlier one; to its top if it has none of that name."""
        wanted = EARLIER.get(heading, heading)
        here = next((each for each in self.headings if EARLIER.get(each, each) == wanted), "")
        return self.file + (f"#{anchor(here)}" if here else "")


def _minutes(kind: str, text: str) -> float:
    if kind == "markdown":
        return len(re.findall(r"[^\W_][\w'’-]*", text)) / WORDS_A_MINUTE
    bets = len(re.findall(r"lab\.predict\(", text))
    drills = sum(map(int, re.findall(r"Desk\(.*# (\d+) minutes", text)))
    return MINUTES_A_CELL + MINUTES_A_BET * bets + drills


def lessons(folder: Path = COURSE) -> dict[str, Lesson]:
    """By number, in order; only those that are there."""
    found = (Lesson(path) for path in lesson_sources(folder))
    return {lesson.number: lesson for lesson in found}


def written(minutes: float) -> str:
    """In steps of five minutes: "25 min", "1 h 10 min"."""
    whole = max(5, 5 * round(minutes / 5))
    hours, rest = divmod(whole, 60)
    return " ".join(part for part in (f"{hours} h" if hours else "", f"{rest} min" if rest else "") if part)


# ---------------------------------------------------------------- four orders to take them in

EVERY_SECTION: tuple[str, ...] = ()
"""Every section."""
SECTIONS = {"all": EVERY_SECTION, "quick": (SURFACE, SAY, CHECK), "hands_on": (SURFACE, GUIDED, SAY, CHECK)}
WHICH = {"all": "all of it", "quick": "five minutes and the interview", "hands_on": "all but going deeper"}


@dataclass(frozen=True)
class Stop:
    """One lesson on a path."""

    number: str
    why: str
    sections: tuple[str, ...] = EVERY_SECTION

    @property
    def which(self) -> str:
        """What they are, in words."""
        return next(WHICH[name] for name, sections in SECTIONS.items() if sections == self.sections)


@dataclass(frozen=True)
class Practice:
    """Something to do beside the lessons."""

    do: str
    minutes: int
    link: str = ""
    """To a notebook, from the start page."""
    command: str = ""
    """For a terminal."""


@dataclass(frozen=True)
class PathStage:
    """A day, or a question."""

    name: str
    stops: tuple[Stop, ...]
    practice: tuple[Practice, ...] = ()


@dataclass(frozen=True)
class LearningPath:
    name: str
    for_whom: str
    stages: tuple[PathStage, ...]

    @property
    def numbers(self) -> list[str]:
        """Its lessons, in its order."""
        return [stop.number for stage in self.stages for stop in stage.stops]


def minutes_of_stage(stage: PathStage, lessons: Mapping[str, Lesson]) -> float:
    """Estimated time for the stops whose lessons are there, and for what else the stage has."""
    read = sum(lessons[stop.number].minutes(*stop.sections) for stop in stage.stops if stop.number in lessons)
    return read + sum(each.minutes for each in stage.practice)


def _path(row: Mapping[str, Any]) -> LearningPath:
    return LearningPath(row["name"], row["for_whom"], tuple(map(_stage, row["stages"])))


def _stage(row: Mapping[str, Any]) -> PathStage:
    practice = tuple(Practice(**each) for each in row.get("practice", ()))
    return PathStage(row["name"], tuple(map(_stop, row["stops"])), practice)


def _stop(row: Mapping[str, str]) -> Stop:
    return Stop(row["number"], row["why"], SECTIONS[row.get("sections", "all")])


_ROWS = tomllib.loads(Path(__file__).with_name("paths.toml").read_text(encoding="utf-8"))
PATHS = tuple(_path(_ROWS[name]) for name in ("weeks", "interview", "server", "teacher"))

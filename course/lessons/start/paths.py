"""Three orders in which to take the lessons, for three readers. Times are computed from the lessons' own texts."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from course.lessons.start.contents import CHECK, DEEP, GUIDED, SAY, SURFACE, Lesson

ALL: tuple[str, ...] = ()
"""Every section."""
SECTIONS = {"all": ALL, "quick": (SURFACE, SAY, CHECK), "hands_on": (SURFACE, GUIDED, SAY, CHECK)}
SHORT = {SURFACE: "surface", GUIDED: "guided", DEEP: "deep dive", SAY: "interview", CHECK: "check"}


@dataclass(frozen=True)
class Stop:
    """One lesson on a path."""

    number: str
    why: str
    sections: tuple[str, ...] = ALL

    @property
    def which(self) -> str:
        return ", ".join(SHORT[section] for section in self.sections) if self.sections else "all of it"


@dataclass(frozen=True)
class Stage:
    """A day, or a question."""

    name: str
    stops: tuple[Stop, ...]


@dataclass(frozen=True)
class Path:
    name: str
    for_whom: str
    stages: tuple[Stage, ...]

    @property
    def numbers(self) -> list[str]:
        """Its lessons, in its order."""
        return [stop.number for stage in self.stages for stop in stage.stops]


def minutes(stage: Stage, lessons: Mapping[str, Lesson]) -> float:
    """Of the stops whose lessons are there."""
    return sum(lessons[stop.number].minutes(*stop.sections) for stop in stage.stops if stop.number in lessons)


def _path(row: Mapping[str, Any]) -> Path:
    stages = tuple(Stage(stage["name"], tuple(map(_stop, stage["stops"]))) for stage in row["stages"])
    return Path(row["name"], row["for_whom"], stages)


def _stop(row: Mapping[str, str]) -> Stop:
    return Stop(row["number"], row["why"], SECTIONS[row.get("sections", "all")])


_ROWS = tomllib.loads(files("course.lessons.start").joinpath("paths.toml").read_text(encoding="utf-8"))
PATHS = INTERVIEW, SERVER, TEACHER = tuple(_path(_ROWS[name]) for name in ("interview", "server", "teacher"))

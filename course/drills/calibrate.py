"""Grader 2, you, calibrated: two samples graded first, so that it is known how much your own grade is worth."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from course.drills.drill import FLUENT, LEVELS, DrawnDrill
from minillm.core.errors import MinillmError

JUDGES = (
    "Can tell: whether an argument follows and is clear, as far as you graded two samples correctly. Cannot "
    "tell: what you don't know yourself. Its weight is how near you came; a level without "
    "a sentence of yours doesn't count."
)
GOOD = "strong"
HOPELESS = 1.5
"""Levels off, on average, from which on a self-grade weighs nothing: guesses are about that far off."""
LEAST_WORDS = 3

Grades = Mapping[str, str]
"""Levels by criterion."""


class GradesError(MinillmError):
    """A grade names a criterion or a level that there isn't."""


@dataclass(frozen=True)
class Off:
    """Where the grade of a sample was off, and why."""

    label: str
    criterion: str
    given: str
    right: str
    why: str

    @property
    def gap(self) -> int:
        """Levels too high."""
        return LEVELS.index(self.given) - LEVELS.index(self.right)


@dataclass(frozen=True)
class Calibration:
    """How well two samples were graded."""

    graded: int
    possible: int
    off: tuple[Off, ...]

    @property
    def weight(self) -> float:
        """0 to 1: what this learner's own grade counts. What was left out is a guess."""
        gaps = sum(abs(each.gap) for each in self.off) + HOPELESS * (self.possible - self.graded)
        return max(0.0, 1 - gaps / self.possible / HOPELESS)

    @property
    def bias(self) -> float:
        """Levels too high, on average."""
        return sum(each.gap for each in self.off) / max(self.graded, 1)


@dataclass(frozen=True)
class Own:
    """The learner's level for one criterion, and the sentence that it rests on."""

    level: str
    quote: str = ""
    counts: bool = True
    """The quote stands in the answer; what is weak needs none."""

    @property
    def points(self) -> float:
        return LEVELS.index(self.level) / (len(LEVELS) - 1)


def samples(drill: DrawnDrill) -> dict[str, str]:
    """Which samples are graded, by the labels that are shown: their order follows from drill and seed."""
    names = [GOOD, FLUENT]
    random.Random(f"{drill.id} {drill.seed}").shuffle(names)
    return dict(zip("AB", names))


def calibrate(drill: DrawnDrill, grades: Mapping[str, Grades]) -> Calibration:
    """Compare grades of the samples, by label, with what they deserve. Raises GradesError."""
    graded, off = 0, []
    for label, name in samples(drill).items():
        sample = drill.rubric.samples[name]
        for key, given in verified(drill, grades.get(label, {})).items():
            graded += 1
            right = drill.grade_of(name, key)
            if given != right:
                (criterion,) = (each for each in drill.rubric.criteria if each.key == key)
                why = sample.why.get(key, f"{right.capitalize()}: {criterion.anchors[LEVELS.index(right)]}")
                off.append(Off(label, key, given, right, why))
    return Calibration(graded, len(samples(drill)) * len(drill.rubric.criteria), tuple(off))


def own_grades(drill: DrawnDrill, answer: str, written: Mapping[str, tuple[str, str]]) -> dict[str, Own]:
    """The learner's (level, quote) by criterion, each quote looked up in the answer. Raises GradesError."""
    levels = verified(drill, {key: level for key, (level, _) in written.items()})
    return {
        key: Own(level, quote := written[key][1].strip(), level == LEVELS[0] or stands_in(quote, answer))
        for key, level in levels.items()
    }


def verified(drill: DrawnDrill, grades: Grades) -> dict[str, str]:
    """The same. Raises GradesError: there is no such criterion in this drill, or no such level."""
    keys = [each.key for each in drill.rubric.criteria]
    for key, level in grades.items():
        if key not in keys or level not in LEVELS:
            raise GradesError(f"{key}={level}: grade {', '.join(keys)} as {', '.join(LEVELS)}")
    return dict(grades)


def stands_in(quote: str, answer: str) -> bool:
    """Word for word, whatever the case, the punctuation and the line breaks; a word or two are no quote."""
    words = _bare(quote)
    return len(words.split()) >= LEAST_WORDS and f" {words} " in f" {_bare(answer)} "


def _bare(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))

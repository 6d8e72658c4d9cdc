"""You, calibrated: two samples graded first, so that it is known how much your own grade is worth."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.drills.drill import LEVELS, SAMPLES, DrawnDrill
from minillm.core.errors import MinillmError

JUDGES = (
    "Can tell: whether an argument follows and is clear, as far as you graded two samples as they deserve. Cannot "
    "tell: what you don't know yourself. No program reads it. A level counts only with eight words of yours or more "
    "that show it, each used once."
)
HOPELESS = 1.0
"""Levels off, on average, from which on a self-grade weighs nothing."""
DRAWN = 2
"""Samples that are graded."""
LEAST_WORDS = 8
"""Words that a quote has at least."""

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
    problem: str = ""
    """Why it doesn't count: its quote isn't in the answer, or is used twice. What is weak needs none."""

    @property
    def counts(self) -> bool:
        return not self.problem

    @property
    def points(self) -> float:
        return LEVELS.index(self.level) / (len(LEVELS) - 1)


def samples(drill: DrawnDrill) -> dict[str, str]:
    """Which samples are graded, by the labels that are shown: drill and seed draw two of the five, and their order."""
    names = random.Random(f"{drill.id} {drill.seed}").sample(SAMPLES, DRAWN)
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
    found: dict[str, Own] = {}
    for key, level in levels.items():
        quote = written[key][1].strip()
        used = [each.quote for each in found.values() if each.quote and each.counts]
        found[key] = Own(level, quote, "" if level == LEVELS[0] else _problem(quote, answer, used))
    return found


def _problem(quote: str, answer: str, used: Sequence[str]) -> str:
    if len(_bare(quote).split()) < LEAST_WORDS:
        return f"quote {LEAST_WORDS} words of your answer or more"
    if not stands_in(quote, answer):
        return "that isn't in your answer"
    if any(_bare(quote) in _bare(other) or _bare(other) in _bare(quote) for other in used):
        return "you've used that sentence already"
    return ""


def ticked(drill: DrawnDrill, answer: str, ticks: Mapping[int, str]) -> dict[int, str]:
    """Facts that a strong answer says, by number from 1, with the words of the answer that say them: those found in it.

    Raises:
        GradesError: there is no such fact.
    """
    most = len(drill.rubric.must_say)
    for number in ticks:
        if not isinstance(number, int) or not 1 <= number <= most:
            raise GradesError(f"there is no fact {number}: a strong answer says {most}, counted from 1")
    return {number: quote.strip() for number, quote in ticks.items() if stands_in(quote, answer)}


def verified(drill: DrawnDrill, grades: Grades) -> dict[str, str]:
    """The same. Raises GradesError: there is no such criterion in this drill, or no such level."""
    keys = [each.key for each in drill.rubric.criteria]
    for key, level in grades.items():
        if key not in keys or level not in LEVELS:
            raise GradesError(f"{key}={level}: grade {', '.join(keys)} as {', '.join(LEVELS)}")
    return dict(grades)


def stands_in(quote: str, answer: str) -> bool:
    """Word for word, whatever the case, the punctuation and the line breaks; a few words are no quote."""
    return quoted_from(quote, answer, LEAST_WORDS)


def quoted_from(quote: str, answer: str, least: int = 3) -> bool:
    """The same, of so many words or more."""
    words = _bare(quote)
    return len(words.split()) >= least and f" {words} " in f" {_bare(answer)} "


def _bare(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))

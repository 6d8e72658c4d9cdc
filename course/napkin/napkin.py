"""One sum: its question, its answer, its working, and what an answer of somebody else is worth."""

import enum
from dataclasses import dataclass

from course.napkin.quantity import Quantity

MINUTE_S = 60.0
"""What a sum should take. Taking longer costs nothing."""
NEAR = 0.2
"""An answer within this share is right: it's a napkin."""
ORDER = 2.0
"""An answer from half to so many times the true one has the right order."""


class Nearness(enum.Enum):
    """How near an answer is."""

    RIGHT = "Right"
    RIGHT_ORDER = "Right order"
    OFF = "Off"


@dataclass(frozen=True)
class Napkin:
    """One sum."""

    lesson: str
    """Number of the lesson that has the formula."""
    question: str
    """With all the numbers that the answer takes."""
    answer: Quantity
    working: tuple[str, ...]
    """Line by line, in the numbers of the question: "weights: 70 billion x 2 bytes = 140 GB"."""
    counted: str = ""
    """What the answer counts, where it has no unit: "replicas"."""

    @property
    def told(self) -> str:
        """The answer with its unit, or with what it counts."""
        return f"{self.answer} {self.counted}".rstrip()

    @property
    def units(self) -> tuple[str, ...]:
        """What an answer may be written in; the first one will do for most."""
        return tuple(self.answer.units) or (self.counted,)

    def judge(self, typed: str) -> Nearness:
        """What an answer is worth. Raises NapkinError if it's no number with a unit that fits."""
        off = self.answer.read(typed, self.counted) / self.answer.value
        if abs(off - 1) <= NEAR:
            return Nearness.RIGHT
        return Nearness.RIGHT_ORDER if 1 / ORDER <= off <= ORDER else Nearness.OFF

    def debrief(self, typed: str | None = None, seconds: float | None = None) -> list[str]:
        """Line by line: the verdict on an answer if there is one, the right answer, the working, the lesson.

        Args:
            seconds: that the answer took; None = nobody kept the clock.
        Raises:
            NapkinError: as of `judge`.
        """
        lines = [f"It's {self.told}."]
        if typed is not None:
            lines.insert(0, self._verdict(typed) + ("" if seconds is None else f" {_time_taken(seconds)}"))
        return [*lines, *(f"  {line}" for line in self.working), f"More about it in lesson {self.lesson}."]

    def _verdict(self, typed: str) -> str:
        verdict, off = self.judge(typed), self.answer.read(typed, self.counted) / self.answer.value
        if verdict is Nearness.RIGHT:
            return f"{verdict.value}."
        times, way = (off, "high") if off > 1 else (1 / off, "low")
        return f"{verdict.value}: too {way} by a factor of {float(f'{times:.3g}'):,.10g}."


def _time_taken(seconds: float) -> str:
    late = "" if seconds <= MINUTE_S else ", which costs nothing"
    return f"You took {seconds:.0f} s of {MINUTE_S:.0f}{late}."

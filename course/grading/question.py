"""What a lesson's check asks, and how what a learner writes is read."""

import re
from dataclasses import dataclass
from typing import Any

from course.drills.amounts import KNOWN_UNITS, RATIO
from course.drills.written import names_in, read_written

BETWEEN = re.compile(r",|;|->|→")
"""What may stand between several answers."""
FRACTION = re.compile(r"(\d+\.?\d*) ?/ ?(0*[1-9]\d*)")
"""Such as 2/3; never over zero."""
SHARE = "0 to 1"
"""The unit of a question that asks for a share of the whole."""
AROUND = " \t\n'\"[]"
"""What may stand around an answer, as in code."""


@dataclass(frozen=True)
class Question:
    """What is asked, and how an answer is written."""

    asks: str
    unit: str = ""
    """Written behind the field."""
    options: tuple[str, ...] = ()
    """To choose from; none = a field."""
    many: bool = False
    """Several answers, with commas, semicolons or arrows between them."""

    def read(self, written: str) -> Any:
        """What stands in the field, as a grader takes it: a number where it is one (1,024 and 30% are), else text."""
        bare = written.strip(AROUND)
        parts = (part.strip(AROUND).removeprefix("and ") for part in BETWEEN.split(bare))
        return [*parts] if self.many else number_or_text(bare, self.unit)


def number_or_text(written: str, unit: str = "") -> float | str:
    """A number in a question's unit, or else the text.

    Args:
        written: may end in that unit or another of its kind: "27 ms" for seconds, "68%" for a share.
    """
    if fraction := FRACTION.fullmatch(written):
        return float(fraction[1]) / float(fraction[2]) * (100 if unit == "%" else 1)
    try:
        return float(written)
    except ValueError:
        found = read_written(written)
    if found is None:
        return written
    told = names_in(found.behind)[0]
    if not found.behind or told == names_in(unit)[0] or (not unit and told in ("%", "$")):
        return found.value
    named, asked = _unit(found.behind), (RATIO, 1.0) if unit == SHARE else _unit(unit)
    if named is not None and asked is not None:
        is_other_rate = "/" in told and told not in KNOWN_UNITS  # dollars a day, where it's dollars an hour
        return written if named[0] != asked[0] or is_other_rate else found.value * named[1] / asked[1]
    return found.value if _singular(found.behind) <= _singular(unit) else written


def _singular(words: str) -> set[str]:
    return {word.rstrip("s") for word in words.lower().split()}


def _unit(words: str) -> tuple[str, float] | None:
    """A known unit that words begin with: what it measures, and its size; None = there is none."""
    return next((KNOWN_UNITS[name] for name in names_in(words) if name in KNOWN_UNITS), None)

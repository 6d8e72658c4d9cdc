"""What a lesson's check asks, and how what a learner writes is read."""

import re
from dataclasses import dataclass
from typing import Any

THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
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
    """Several answers, with commas between them."""

    def read(self, written: str) -> Any:
        """What stands in the field, as a grader takes it: a number where it is one (1,024 and 30% are), else text."""
        bare = written.strip(AROUND)
        return [part.strip(AROUND) for part in bare.split(",")] if self.many else number_or_text(bare, self.unit)


def number_or_text(written: str, unit: str = "") -> float | str:
    """A number, which may have its unit with it, or else the text."""
    plain = THOUSANDS.sub("", written.removeprefix("$")).removesuffix(unit).removesuffix("%").strip()
    try:
        return float(plain)
    except ValueError:
        return written

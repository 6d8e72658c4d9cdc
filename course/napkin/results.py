"""Which days' sums were answered, and whether rightly, on this machine only: one JSON file in minillm's home folder."""

from datetime import date

from pydantic import Field

from course.lab.json_store import JsonStore, StoredModel
from course.lab.streak import DayPlayed
from course.napkin.napkin import Nearness


class SumResult(DayPlayed):
    """What came of one day's sum the first time it was answered."""

    right: bool


class SumResults(StoredModel):
    """By date."""

    days: dict[str, SumResult] = Field(default_factory=dict)


RESULTS = JsonStore("napkin.json", SumResults)


def keep(day: date, verdict: Nearness, today: date) -> None:
    """Note an answer to a day's sum: the first one counts, since the working stands below it."""
    result = result_of(day, verdict, today)
    RESULTS.change(lambda kept: kept.days.setdefault(str(day), result))


def result_of(day: date, verdict: Nearness, today: date) -> SumResult:
    """What is kept of an answer."""
    return SumResult(right=verdict is Nearness.RIGHT, on_the_day=day == today)

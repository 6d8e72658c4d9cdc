"""Days in a row on which something was done: the incident of the day, the sum of the day."""

from collections.abc import Mapping
from datetime import date, timedelta

from course.lab.json_store import StoredModel


class DayPlayed(StoredModel):
    """What is kept of one day's."""

    on_the_day: bool = False
    """Whether it was played on its own date: only then it counts for the streak."""


def streak(days: Mapping[str, DayPlayed], today: date) -> int:
    """Days in a row, up to today or yesterday, each played on its own date.

    Args:
        days: by date, such as "2026-01-05".
    """

    def played(day: date) -> bool:
        return str(day) in days and days[str(day)].on_the_day

    day = today if played(today) else today - timedelta(days=1)
    count = 0
    while played(day):
        count, day = count + 1, day - timedelta(days=1)
    return count

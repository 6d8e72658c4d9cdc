"""Napkin sums by date as data for static/napkin.js: those that `minillm napkin` asks on these days."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from course.napkin.library import napkin_of_day
from course.napkin.napkin import MINUTE_S, NEAR, ORDER
from course.napkin.quantity import BARE

BEFORE, AHEAD = 30, 366
"""Days before and after the one on which the site is written."""


def exported(day: date, lessons: Mapping[str, str]) -> dict[str, Any]:
    """The sums around a day.

    Args:
        lessons: the name of each lesson's page, by its number.
    """
    dates = [day + timedelta(days=away) for away in range(-BEFORE, AHEAD + 1)]
    sums = [
        {
            "question": each.question,
            "value": each.answer.value,
            "unit": each.answer.unit,
            "units": each.units,
            "told": each.told,
            "working": each.working,
            "lesson": each.lesson,
        }
        for each in map(napkin_of_day, dates)
    ]
    rules = {"minute_s": MINUTE_S, "near": NEAR, "order": ORDER, "bare": BARE, "lessons": dict(lessons)}
    return {"first": f"{dates[0]}", "sums": sums, **rules}

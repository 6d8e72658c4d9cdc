"""The sum of a day in a browser tab: asked and judged by the same Python as in a terminal."""

from datetime import date
from typing import Any

from course.napkin.library import napkin_of_day
from course.napkin.napkin import MINUTE_S
from course.napkin.quantity import NapkinError, with_unit
from course.napkin.results import RESULTS, result_of


class TabNapkin:
    """Sums, one after the other.

    Args:
        day: whose sum comes first, as 2026-01-05.
    Raises:
        NapkinError: it's no day.
    """

    def __init__(self, day: str) -> None:
        self._day = _day(day)

    def act(self, action: dict[str, Any]) -> dict[str, Any]:
        """What is shown after an action: `{"do": "look"}`, `{"do": "turn", "day": ...}` to another day's, or
        `{"do": "answer", "number": ..., "unit": ..., "seconds": ...}`; without a number that's the working alone. An
        answer brings `kept` along: what a notebook would keep of it, by file.

        Raises:
            NapkinError: it's no answer that can be judged, no day or no action.
        """
        do, told, kept = action.get("do"), None, {}
        if do == "turn":
            self._day = _day(str(action.get("day")))
        elif do == "answer":
            typed = with_unit(str(action.get("number", "")), str(action.get("unit", "")))
            told = napkin_of_day(self._day).debrief(typed or None, float(action.get("seconds", 0)))
            kept = self._kept(typed) if typed else {}
        elif do != "look":
            raise NapkinError(f"no action {do!r}: choose from look, turn, answer")
        napkin = napkin_of_day(self._day)
        shown = {"day": f"{self._day}", "question": napkin.question, "units": list(napkin.units), "minute": MINUTE_S}
        return {**shown, "told": told, "lesson": napkin.lesson, "kept": kept}

    def _kept(self, typed: str) -> dict[str, Any]:
        result = result_of(self._day, napkin_of_day(self._day).judge(typed), date.today())
        return {RESULTS.name: {"days": {str(self._day): result.model_dump()}}}


def _day(said: str) -> date:
    try:
        return date.fromisoformat(said)
    except ValueError:
        raise NapkinError(f"a day is written as 2026-01-05, not {said!r}") from None

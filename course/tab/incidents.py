"""An incident in a browser tab: any seed, drawn, played and graded by the same Python as in a notebook."""

from datetime import date
from typing import Any

from course.incidents import Incident, IncidentError
from course.incidents.console import ConsoleSession, State
from course.incidents.daily import PAR, RESULTS, Par, par_of, result_of
from course.incidents.incident import TOLD


def _day(said: str) -> date:
    try:
        return date.fromisoformat(said)
    except ValueError:
        raise IncidentError(f"a day is written as 2026-01-05, not {said!r}") from None


class TabIncident:
    """One incident, moved on by the console's actions.

    Args:
        seed: which one; None = that of a day.
        difficulty: 1 to 3.
        day: as 2026-01-05, for the incident that everyone has that day.
    Raises:
        IncidentError: there is no such incident, or the day is no date.
    """

    def __init__(self, seed: int | None = None, difficulty: int = 1, day: str = "") -> None:
        self._day = _day(day) if seed is None else None
        if self._day is not None:
            self._incident = Incident.today(self._day)
        else:
            self._incident = Incident.generate(seed=seed, difficulty=difficulty)
        self._is_graded = False
        self._session = ConsoleSession(self._incident, self._note)

    def act(self, action: dict[str, Any]) -> State:
        """The state after an action; `{"do": "look"}` changes nothing. The one that has its grade brings `kept` along:
        what a notebook would keep of it, by file.

        Raises:
            IncidentError: it's refused, and nothing has changed.
        """
        was_graded, state = self._is_graded, self._session.act(action)
        if self._is_graded and not was_graded:
            state["kept"] = self._kept()
        return state

    def _note(self) -> None:
        self._is_graded = True

    def _kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = {TOLD.name: {"names": [self._incident.name]}}
        if self._day is not None:
            result = result_of(self._incident, self._day, date.today())
            kept[RESULTS.name] = {"days": {str(self._day): result.model_dump()}}
        return kept

    def par(self) -> dict[str, float]:
        """What a careful player needs, once it is graded."""
        found: Par = par_of(self._incident)
        return {"questions": found.questions, "minutes": found.minutes, "score": found.score, "player": PAR}

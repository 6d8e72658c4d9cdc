"""An incident in a browser tab: any seed, drawn, played and graded by the same Python as in a notebook."""

from datetime import date
from typing import Any

from course.incidents import Incident, IncidentError
from course.incidents.console import ConsoleSession, State
from course.incidents.daily import PAR, Par, par_of


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
        if seed is None:
            self._incident = Incident.today(_day(day))
        else:
            self._incident = Incident.generate(seed=seed, difficulty=difficulty)
        self._session = ConsoleSession(self._incident)

    def act(self, action: dict[str, Any]) -> State:
        """The state after an action; `{"do": "look"}` changes nothing.

        Raises:
            IncidentError: it's refused, and nothing has changed.
        """
        return self._session.act(action)

    def par(self) -> dict[str, float]:
        """What a careful player needs, once it is graded."""
        found: Par = par_of(self._incident)
        return {"questions": found.questions, "minutes": found.minutes, "score": found.score, "player": PAR}

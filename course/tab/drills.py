"""A drill in a browser tab: any draw of its numbers, sat and judged by the same Python as in a notebook."""

from typing import Any

from course.drills.console import DrillSession, State
from course.drills.library import find_drill


class TabDrill:
    """One drill, sat by the view's actions. Nothing is kept of it, and no judge model is asked.

    Args:
        drill: its id.
        seed: which numbers; 0 is the classic.
    Raises:
        LookupError: there is no such drill.
    """

    def __init__(self, drill: str, seed: int = 0) -> None:
        self._session = DrillSession(find_drill(drill).drawn(seed), judge_url="")

    def act(self, action: dict[str, Any]) -> State:
        """The state after an action; `{"do": "look"}` changes nothing.

        Raises:
            DrillError: it's refused, and nothing has changed.
        """
        return self._session.act(action)

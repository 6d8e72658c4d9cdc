"""A drill in a browser tab: any draw of its numbers, sat and judged by the same Python as in a notebook."""

from typing import Any

from course.drills.attempts import FILE, attempt_of
from course.drills.console import DrillSession, State
from course.drills.library import find_drill


class TabDrill:
    """One drill, sat by the view's actions. No judge model is asked.

    Args:
        drill: its id.
        seed: which numbers; 0 is the classic.
    Raises:
        LookupError: there is no such drill.
    """

    def __init__(self, drill: str, seed: int = 0) -> None:
        self._at = 0.0
        self._session = DrillSession(find_drill(drill).drawn(seed), now=lambda: self._at, judge_url="")

    def act(self, action: dict[str, Any], at: float = 0.0) -> State:
        """The state after an action; `{"do": "look"}` changes nothing. The one that ends it brings `kept` along: what a
        notebook would keep of it, by file.

        Args:
            at: when, in seconds. After a reload the page tells its actions again, with the moments they had.
        Raises:
            DrillError: it's refused, and nothing has changed.
        """
        self._at = at
        was_over, state = self._session.is_over, self._session.act(action)
        if self._session.is_over and not was_over:
            state["kept"] = {FILE.name: {"done": [attempt_of(self._session.sitting).model_dump()]}}
        return state

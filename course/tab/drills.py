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
        self._session = DrillSession(find_drill(drill).drawn(seed), judge_url="")

    def act(self, action: dict[str, Any]) -> State:
        """The state after an action; `{"do": "look"}` changes nothing. The one that ends it brings `kept` along: what a
        notebook would keep of it, by file.

        Raises:
            DrillError: it's refused, and nothing has changed.
        """
        was_over, state = self._session.is_over, self._session.act(action)
        if self._session.is_over and not was_over:
            state["kept"] = {FILE.name: {"done": [attempt_of(self._session.sitting).model_dump()]}}
        return state

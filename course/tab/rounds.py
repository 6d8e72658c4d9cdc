"""A design round in a browser tab: any draw of its numbers, sat and judged by the same Python as in a notebook."""

from typing import Any

from course.rounds.console import RoundSession, State
from course.rounds.history import FILE, is_played, played_of
from course.rounds.library import find_round


class TabRound:
    """One round, sat by the view's actions.

    Args:
        round: its id.
        seed: which numbers; 0 is the classic.
    Raises:
        LookupError: there is no such round.
    """

    def __init__(self, round: str, seed: int = 0) -> None:
        self._at = 0.0
        self._session = RoundSession(find_round(round).drawn(seed), now=lambda: self._at)

    def act(self, action: dict[str, Any], at: float = 0.0) -> State:
        """The state after an action; `{"do": "look"}` changes nothing. The one that ends it brings `kept` along: what a
        notebook would keep of it, by file.

        Args:
            at: when, in seconds. After a reload the page tells its actions again, with the moments they had.
        Raises:
            CommitmentError: it's refused, and nothing has changed.
        """
        self._at = at
        was_over, state = self._session.is_over, self._session.act(action)
        if self._session.is_over and not was_over and is_played(self._session.sitting):
            state["kept"] = {FILE.name: {"done": [played_of(self._session.sitting).model_dump()]}}
        return state

"""The matchers that follow a compiled grammar: one for each answer.

llguidance's copies of a matcher share one lexer, and its states stay. So each request has its grammar compiled for
itself (structured_outputs.py), and only its own n answers share one.

Masks are made in the engine's thread, where every row waits for them. So each request has a Meter.
"""

import re
from typing import TYPE_CHECKING

from minillm.frontend.grammar_worker import ALLOWED_S, Meter

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher

GRAMMAR_ERROR = "the grammar cannot be followed"
"""How the error of a request begins that failed by its own grammar, and by nothing else in the step."""
EXPLANATIONS = {
    "too many states": "its regular expressions need too many states: lower what they repeat or count",
    r"current row has|too many items": "it is too ambiguous: let one text have one derivation, and repeat with * or +",
    r"lexer fuel|grammar size|too complex": "its regular expressions are too complex: make them smaller",
}
"""llguidance's messages about its limits, as patterns, and ours."""


def explain(message: str) -> str:
    """llguidance's message, in our words if it is about a limit."""
    message = message.replace("<non-verbose/>", "").strip()
    first_line = message.partition("\n")[0].lower()  # below it may be the client's own text
    return next((ours for theirs, ours in EXPLANATIONS.items() if re.search(theirs, first_line)), message)


class GrammarMatcher:
    """Follows a grammar through one answer. Once it has failed, it stays so.

    Args:
        matcher: at the grammar's beginning; this has it for itself.
        meter: its request's.
    """

    def __init__(self, matcher: "LLMatcher", meter: Meter) -> None:
        self._matcher, self._meter = matcher, meter
        self.error: str | None = None
        """Why it cannot go on: GRAMMAR_ERROR with an explanation."""

    @classmethod
    def for_answers(cls, compiled: "LLMatcher", count: int) -> "list[GrammarMatcher]":
        """Matchers for the answers of one request, which share its meter."""
        meter = Meter()
        return [cls(compiled.deep_copy(), meter) for _ in range(count)]

    def fill_mask(self, bitmask: "np.ndarray", row: int) -> None:
        """Write which tokens may come next: a bit each, in one row of an int32 array [R, V/32]."""
        from llguidance.numpy import fill_next_token_bitmask  # only where it is used

        if self._is_out_of_time():
            return
        with self._meter:
            fill_next_token_bitmask(self._matcher, bitmask, row)
        self._meter.allow_token()
        self._look_for_error()

    def consume_token(self, token_id: int) -> bool:
        """Go on by a token. False if it has failed."""
        if self.error is not None:
            return False
        with self._meter:
            self._matcher.consume_token(token_id)
        self._look_for_error()
        return self.error is None

    def is_stopped(self) -> bool:
        """The grammar is complete, and nothing can follow."""
        return self.error is None and self._matcher.is_stopped()

    def _is_out_of_time(self) -> bool:
        if self.error is None and self._meter.is_exceeded:
            self.error = (
                f"{GRAMMAR_ERROR}: its masks take more than {ALLOWED_S * 1e3:g} ms of CPU time a token, which is what "
                "an ambiguous grammar does"
            )
        return self.error is not None

    def _look_for_error(self) -> None:
        if self.error is None and self._matcher.is_error():
            self.error = f"{GRAMMAR_ERROR}: {explain(self._matcher.get_error())}"

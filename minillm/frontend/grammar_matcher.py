"""A grammar that is compiled, and the matchers that follow it: one for each answer.

llguidance's copies of a matcher share one lexer, and its states stay: those of all answers add up. So a compiled
grammar counts the tokens that it has served, and after RENEW_TOKENS of them the compiler makes another
(structured_outputs.py). An answer that meets a full lexer before that goes on with a matcher of its own.

Masks are made in the engine's thread, where every row waits for them. So each request has a Meter.
"""

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from minillm.frontend.grammar_worker import ALLOWED_S, Meter

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher

GRAMMAR_ERROR = "the grammar cannot be followed"
"""How the error of a request begins that failed by its own grammar, and by nothing else in the step."""
GRAMMAR_FULL = "other answers have filled the lexer of the request's grammar; another is being made: send it again"
"""The error of a request that can have its answer a moment later."""
RENEW_TOKENS = 5000
"""Tokens that one compiled grammar serves. The regex `[\\s\\S]*a[\\s\\S]{60}` makes 42 states of each; 250,000 are the
limit, and most schemas make fewer than one."""
TOKEN_BYTES = 4096
"""Bytes that a served token adds to a compiled grammar, about as many as for that regex."""
RENEW_S = 0.02
"""Most CPU seconds that compiling again may take in the engine's thread."""
TOO_MANY_STATES = "too many states"
"""What llguidance says when its lexer is full."""
EXPLANATIONS = {
    TOO_MANY_STATES: "its regular expressions need too many states: lower what they repeat or count",
    r"current row has|too many items": "it is too ambiguous: let one text have one derivation, and repeat with * or +",
    r"lexer fuel|grammar size|too complex": "its regular expressions are too complex: make them smaller",
    "NoExtensionBias": "no text follows it: has a rule, or a $ref, no way out of itself?",
    r"Unimplemented keys: \[(.*)\]": r"keywords that can't be enforced: \1. Leave them out of the schema",
}
"""llguidance's messages that don't say what to do, as patterns, and ours."""


def explain(message: str) -> str:
    """llguidance's message, in our words if we have some for it."""
    message = message.replace("<non-verbose/>", "").strip()
    first_line = message.partition("\n")[0]  # below it may be the client's own text
    for theirs, ours in EXPLANATIONS.items():
        if found := re.search(theirs, first_line, re.IGNORECASE):
            return found.expand(ours)
    return message


class CompiledGrammar:
    """One grammar, which any number of answers may follow.

    Args:
        compile_again: makes a matcher at the grammar's beginning, with a lexer of its own.
        num_bytes: that it takes at first, as its trial measured.
    """

    def __init__(self, compile_again: "Callable[[], LLMatcher]", num_bytes: int = 0) -> None:
        self.compile_again = compile_again
        start = time.thread_time()
        self.first = compile_again()
        """A matcher at the grammar's beginning, to be copied."""
        self.compile_s = time.thread_time() - start
        """CPU seconds that compiling takes."""
        self._first_bytes = num_bytes
        self.num_tokens = 0
        """Served, over all answers."""

    @property
    def num_bytes(self) -> int:
        """Estimate of what it takes by now."""
        return self._first_bytes + self.num_tokens * TOKEN_BYTES

    @property
    def is_worn(self) -> bool:
        """Another should take its place."""
        return self.num_tokens >= RENEW_TOKENS

    def renewed(self) -> "CompiledGrammar":
        """This grammar with an empty lexer."""
        return CompiledGrammar(self.compile_again, self._first_bytes)

    def matchers(self, count: int) -> "list[GrammarMatcher]":
        """For the answers of one request, which share its meter."""
        meter = Meter()
        return [GrammarMatcher(self, meter) for _ in range(count)]


class GrammarMatcher:
    """Follows a grammar through one answer. Once it has failed, it stays so.

    Args:
        grammar: what it follows.
        meter: its request's.
    """

    def __init__(self, grammar: CompiledGrammar, meter: Meter) -> None:
        self._grammar, self._meter = grammar, meter
        self._matcher = grammar.first.deep_copy()
        self._has_own_lexer = False
        self._tokens: list[int] = []
        self.error: str | None = None
        """Why it cannot go on: GRAMMAR_ERROR with an explanation, or GRAMMAR_FULL."""

    def fill_mask(self, bitmask: "np.ndarray", row: int) -> None:
        """Write which tokens may come next: a bit each, in one row of an int32 array [R, V/32]."""
        from llguidance.numpy import fill_next_token_bitmask  # only where it is used

        if not self._is_out_of_time():
            self._ask(lambda matcher: fill_next_token_bitmask(matcher, bitmask, row))
            self._meter.allow_token()

    def consume_token(self, token_id: int) -> bool:
        """Go on by a token. False if it has failed."""
        if self.error is not None:
            return False
        self._ask(lambda matcher: matcher.consume_token(token_id))
        self._tokens.append(token_id)
        self._grammar.num_tokens += 1
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

    def _ask(self, act: "Callable[[LLMatcher], object]") -> None:
        """Have the matcher do something. If its lexer is full, so does one with a lexer of its own; if that is full,
        this answer alone has filled it."""
        with self._meter:
            act(self._matcher)
            is_full = self._matcher.is_error() and TOO_MANY_STATES in self._matcher.get_error()
            if is_full and not self._has_own_lexer and self._take_own_lexer():
                act(self._matcher)
        if self.error is None and self._matcher.is_error():
            self.error = f"{GRAMMAR_ERROR}: {explain(self._matcher.get_error())}"

    def _take_own_lexer(self) -> bool:
        """Compile again and follow the answer so far. False if that would hold up other rows."""
        self._grammar.num_tokens = max(self._grammar.num_tokens, RENEW_TOKENS)
        if self._grammar.compile_s > RENEW_S:
            self.error = GRAMMAR_FULL
            return False
        self._matcher, self._has_own_lexer = self._grammar.compile_again(), True
        return not self._tokens or self._matcher.consume_tokens(self._tokens)

"""Prompt lookup: what followed the same words before will follow them again (Saxena 2023).

Summaries quote, edits repeat the code, answers repeat the question: there it drafts well, and for nothing.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.core.request import Draft, Request
from minillm.speculation.base import DraftRequest, Proposer

MOST_PLACES = 16
"""Places where the last few tokens stood before: so many are compared, the latest."""


@dataclass(slots=True)
class Places:
    """One request's tokens, and where each run of `size` of them ends."""

    size: int
    tokens: list[int] = field(default_factory=list)
    ends: defaultdict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Positions after each run, but for the last run: that is the one to be looked up."""

    def extend(self, tokens: list[int]) -> None:
        """Enter tokens, each of them once, so that a step's work does not grow with the context."""
        first = max(len(self.tokens), self.size)
        self.tokens += tokens
        for end in range(first, len(self.tokens)):
            self.ends[tuple(self.tokens[end - self.size : end])].append(end)

    def longest_match(self, longest: int) -> int | None:
        """The position after the earlier run of tokens that agrees longest with the last ones; the latest such."""
        found, best = None, 0
        for end in reversed(self.ends.get(tuple(self.tokens[-self.size :]), ())[-MOST_PLACES:]):
            length = self.size
            while length < min(longest, end) and self.tokens[end - length - 1] == self.tokens[-length - 1]:
                length += 1
            if length > best:
                found, best = end, length
        return found


class NgramProposer(Proposer):
    """Drafts by looking up the last tokens in what was read and written before.

    Args:
        shortest: tokens that must agree.
        longest: more than so many need not be compared.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self._places: dict[str, Places] = {}

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._continue(request, k)) for request, k in wanted]

    def forget(self, request: Request) -> None:
        self._places.pop(request.request_id, None)

    def reset(self) -> None:
        self._places.clear()

    def _continue(self, request: Request, k: int) -> list[int]:
        places = self._places.setdefault(request.request_id, Places(self.shortest))
        places.extend(request.token_ids(len(places.tokens), request.num_known_tokens))
        start = places.longest_match(self.longest)
        if start is None:
            return []
        # Where the earlier place runs into the end, what has been drafted goes on: a loop is followed round.
        text = list(places.tokens[start : start + k])
        while len(text) < k:
            text.append(text[len(text) - (len(places.tokens) - start)])
        return text

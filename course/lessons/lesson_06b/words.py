"""What the run of lesson 06b showed. No article's claim belongs to it: none mentions experts or latent attention."""

from collections.abc import Callable, Mapping

from course.lab.claims import Claim
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lessons.lesson_06b.run import BET, expected


def shares(found: Mapping[int, float]) -> Finding:
    """How far the engine's routing was from even."""
    even, ends = expected(128, 8, BET), {"few": found[min(found)], "many": found[max(found)], "most": max(found)}
    outcome = "favourites" if found[BET] < 0.95 * even else "even"
    return tell("06b", "shares", outcome, here=found[BET], even=even, batch=BET, **ends)


MEASURE: dict[str, Callable[[Lab], Claim]] = {}

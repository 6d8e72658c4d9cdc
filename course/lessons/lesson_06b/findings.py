"""What the run of lesson 06b showed, in words."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lessons.lesson_06b.experts import BET, expected


def shares(found: Mapping[int, float]) -> Finding:
    """How far the engine's routing was from even."""
    even, ends = expected(128, 8, BET), {"few": found[min(found)], "many": found[max(found)], "most": max(found)}
    outcome = "favourites" if found[BET] < 0.95 * even else "even"
    return tell("06b", "shares", outcome, here=found[BET], even=even, batch=BET, **ends)

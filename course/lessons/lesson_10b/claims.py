"""The claims of lesson 10b."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lessons.lesson_10.claims import e1, e7, measure_e1, measure_e7

__all__ = ["e1", "e7"]
EXPERIMENT = ("lab/server.py", "lab/http_client.py", "lessons/lesson_10/claims.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"E1": measure_e1, "E7": measure_e7}

"""The claims of lesson 10c."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lessons.lesson_10 import leaving, trouble
from course.lessons.lesson_10.claims import d15, e6

__all__ = ["d15", "e6"]
EXPERIMENT = (
    "lab/server.py",
    "lab/http_client.py",
    "lessons/lesson_10/claims.py",
    "lessons/lesson_10/leaving.py",
    "lessons/lesson_10/trouble.py",
)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "D15": lambda lab: d15(leaving.crowds(lab)),
    "E6": lambda lab: e6(trouble.send_all(lab)),
}

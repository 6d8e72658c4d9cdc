"""The claims of lesson 11b."""

from course.lessons.lesson_11.claims import SPIKES as MEASURE
from course.lessons.lesson_11.claims import a21, e2, e3

__all__ = ["MEASURE", "a21", "e2", "e3"]
EXPERIMENT = ("lessons/lesson_11/claims.py",)

"""The claims of lesson 11c."""

from course.lessons.lesson_11.claims import MONEY as MEASURE
from course.lessons.lesson_11.claims import a20, d20, e8

__all__ = ["MEASURE", "a20", "d20", "e8"]
EXPERIMENT = ("lessons/lesson_11/claims.py",)

"""The claims of lesson 11c."""

from course.lab.lesson_11.claims import MONEY as MEASURE
from course.lab.lesson_11.claims import a20, d20, e8

__all__ = ["MEASURE", "a20", "d20", "e8"]
EXPERIMENT = ("lesson_11/claims.py",)

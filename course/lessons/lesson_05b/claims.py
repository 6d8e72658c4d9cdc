"""Lesson 05b measures no claim of the five articles: none of them speaks of disaggregation."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.lab import Lab

EXPERIMENT = ()
MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""No article's claim belongs to lesson 06b: none of them mentions experts or latent attention."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.lab import Lab

MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""What workloads are configured and drawn with: validated models, and random numbers, one independent stream a purpose.

Arrivals, prompt lengths, output lengths, think times and faults each draw from their own generator. So two
runs that differ in one of them share all the others (common random numbers, as simulation text books call
it), and a difference between the runs is due to what was changed, not to luck.
"""

import random

from course.simulator.errors import WorkloadError
from minillm.strict_model import StrictModel


class WorkloadModel(StrictModel):
    """Base of everything that describes traffic and fleets."""

    _error: type[Exception] = WorkloadError


class Streams:
    """Named random streams under one seed: `streams["arrivals"]` is a `random.Random` seeded with the text
    "seed/owner/arrivals". The standard library promises the same numbers for the same text, wherever Python runs."""

    def __init__(self, seed: int, owner: str = "") -> None:
        if seed < 0:
            raise WorkloadError(f"a seed is 0 or more, not {seed}")
        self._seed = seed
        self._owner = owner
        self._generators: dict[str, random.Random] = {}
        self._firsts: dict[str, float] = {}

    def __getitem__(self, purpose: str) -> random.Random:
        """The generator for a purpose; asking again goes on where it was."""
        if purpose not in self._generators:
            self._generators[purpose] = random.Random(f"{self._seed}/{self._owner}/{purpose}")
        return self._generators[purpose]

    def uniform(self, purpose: str) -> float:
        """One number in [0, 1)."""
        return self[purpose].random()

    def first_uniform(self, purpose: str) -> float:
        """The first number of a stream of its own, the same however often it is asked for."""
        if purpose not in self._firsts:
            self._firsts[purpose] = self.uniform(purpose)
        return self._firsts[purpose]

"""What workloads are configured and drawn with: validated models, and random numbers, one independent stream a purpose.

Arrivals, prompt lengths, output lengths, think times and faults each draw from their own generator. So two
runs that differ in one of them share all the others (common random numbers, as simulation text books call
it), and a difference between the runs is due to what was changed, not to luck.
"""

import hashlib

import numpy as np

from course.simulator.errors import WorkloadError
from minillm.core.params import StrictModel


class WorkloadModel(StrictModel):
    """Base of everything that describes traffic and fleets."""

    _error: type[Exception] = WorkloadError


class Streams:
    """Named random streams under one seed. The same seed and name always give the same numbers."""

    def __init__(self, seed: int, owner: str = "") -> None:
        if seed < 0:
            raise WorkloadError(f"a seed is 0 or more, not {seed}")
        self._seed = seed
        self._owner = owner
        self._generators: dict[str, np.random.Generator] = {}
        self._firsts: dict[str, float] = {}

    def __getitem__(self, purpose: str) -> np.random.Generator:
        """The generator for a purpose; asking again goes on where it was."""
        if purpose not in self._generators:
            name = f"{self._owner}/{purpose}".encode()
            key = int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big")
            seeds = np.random.SeedSequence(self._seed, spawn_key=(key,))
            self._generators[purpose] = np.random.Generator(np.random.PCG64(seeds))
        return self._generators[purpose]

    def uniform(self, purpose: str) -> float:
        """One number in [0, 1)."""
        return float(self[purpose].random())

    def first_uniform(self, purpose: str) -> float:
        """The first number of a stream of its own, the same however often it is asked for."""
        if purpose not in self._firsts:
            self._firsts[purpose] = self.uniform(purpose)
        return self._firsts[purpose]

"""GNU's OpenMP, which PyTorch computes with on Linux: each thread that ever computed keeps a team of workers.

Once all teams together outnumber the cores, OpenMP puts its workers to sleep between any two operations, instead of
having them spin. On 2 cores a second team makes each decode step of a small model nearly twice as long. So a thread
that has computed, and leaves the next steps to another, ends its team.
"""

import ctypes
from pathlib import Path

import torch

BUNDLED = next((Path(torch.__file__).parent / "lib").glob("libgomp*"), None)
"""The library, as PyTorch brings it; None = it has another OpenMP."""


def end_team() -> None:
    """End the workers of the calling thread, softly (omp_pause_soft is 1). Its next operation makes new ones."""
    if BUNDLED is not None and (pause := getattr(ctypes.CDLL(str(BUNDLED)), "omp_pause_resource_all", None)):
        pause(1)  # OpenMP 5.0, GCC 9

"""Zeros in a matrix: what a dense product makes of them, what a sparse one does, and what has to be kept."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from course.lab.lab import Lab
from minillm.bench.target import Target
from minillm.host.timing import best_seconds

SHARES = (0.0, 0.5, 0.8, 0.95, 0.99)
"""Shares of zeros that are tried."""
SIDE, SHORT_SIDE, TINY_SIDE = 2048, 1024, 128
ROWS = {"decode, 1 row": 1, "prefill, 128 rows": 128}
"""Tokens that are multiplied with the matrix at once."""
INDEX_BYTES, NUMBER_BYTES = 4, 2
"""CSR with 16-bit numbers: each number that is not zero brings the number of its column."""
SAME = 0.15
"""Times closer than that are equal."""


def break_even_zeros() -> float:
    """Share of zeros above which numbers with their columns are fewer bytes than the dense matrix."""
    return 1 - NUMBER_BYTES / (NUMBER_BYTES + INDEX_BYTES)


@dataclass(frozen=True)
class Timed:
    """One product, with a matrix that has so many zeros. Seconds, best of several."""

    kind: str
    zeros: float
    dense: float
    sparse: float
    """Seconds of the product with the matrix as compressed sparse rows (CSR)."""


def measure(lab: Lab, side: int | None = None, repeats: int = 7) -> list[Timed]:
    """Dense and sparse products with the same matrix, float32, one CPU thread: threads that wait for each other would
    drown the difference. On a GPU, all of it.

    Raises:
        SimulatedDeviceError: nothing is multiplied.
    """
    lab.needs_model("Timing products by themselves")
    device = Target(device=lab.config().device).torch_device()
    side = side or (SIDE if lab.scale == 1 else SHORT_SIDE)
    generator = torch.Generator().manual_seed(0)
    weights, chance = (torch.rand(side, side, generator=generator) for _ in range(2))
    inputs = {kind: torch.randn(rows, side, generator=generator).to(device) for kind, rows in ROWS.items()}
    found, dense = [], torch.empty(side, side, device=device)
    with one_thread():
        for zeros in SHARES:
            dense.copy_(weights * (chance >= zeros))  # always the same pages: other ones may be read faster
            sparse = as_csr(dense)
            for kind, x in inputs.items():
                columns = x.T.contiguous()
                times = (
                    best_seconds(partial(F.linear, x, dense), device, repeats),
                    best_seconds(partial(torch.mm, sparse, columns), device, repeats),
                )
                found.append(Timed(kind, zeros, *times))
    return found


def as_csr(dense: Tensor) -> Tensor:
    """Compressed sparse rows: the numbers that are not zero, and where they stood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch calls the layout a beta feature
        return dense.to_sparse_csr()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def of_kind(found: Sequence[Timed], kind: str) -> list[Timed]:
    return [each for each in found if each.kind == kind]


def dense_change(found: Sequence[Timed], kind: str, zeros: float = 0.5) -> float:
    """Time of a dense product with so many zeros, over the same with none."""
    by = {each.zeros: each.dense for each in of_kind(found, kind)}
    return by[zeros] / by[0.0]


def sparse_change(found: Sequence[Timed], kind: str, zeros: float = 0.5) -> float:
    """Time of a sparse product with so many zeros, over a dense one without."""
    by = {each.zeros: each for each in of_kind(found, kind)}
    return by[zeros].sparse / by[0.0].dense


def pays_from(found: Sequence[Timed], kind: str) -> float | None:
    """The smallest measured share of zeros at which the sparse product beats the dense one; None = at none of them."""
    dense = of_kind(found, kind)[0].dense
    return next((each.zeros for each in of_kind(found, kind) if each.sparse < (1 - SAME) * dense), None)

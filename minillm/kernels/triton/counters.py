"""What programs that share a sum count with: the one that ends last adds up.

A kernel finds zeros, and leaves zeros. So launches that follow each other in a stream share one set of counters, and
launches that may run side by side must not: a sum would be taken for whole that isn't. Two engines on the same weights
compute side by side if each has a thread and a stream of its own, or if one records its graphs, for which it runs on a
side stream, while the other decodes. So a set belongs to a runner, whose launches never overlap, and a graph keeps the
set that it was recorded with.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NUM_COUNTERS = 4096
"""A launch wants one for each tile whose sum is shared, and sums are shared where tiles are fewer than a GPU's
processors want: hundreds, at most."""


class Counting(threading.local):
    """With what a thread counts at present."""

    own: Tensor | None = None


_counting = Counting()


def make_counters(device: torch.device) -> Tensor:
    """A set of counters: int32 zeros."""
    return torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)


@contextmanager
def counting_with(counters: Tensor) -> Iterator[None]:
    """This thread's launches, recorded ones too, count with these."""
    before, _counting.own = _counting.own, counters
    try:
        yield
    finally:
        _counting.own = before


def counters_for(device: torch.device) -> Tensor:
    """What the next launch counts with. Layers that no runner calls, as when they're tried, share a set."""
    return _shared(device) if _counting.own is None else _counting.own


_shared = functools.cache(make_counters)

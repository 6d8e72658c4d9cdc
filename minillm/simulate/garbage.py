"""Looking for garbage less often, where many objects are made and few are dropped."""

import contextlib
import gc
from collections.abc import Iterator

OBJECTS = 100_000
"""Python looks for garbage when so many more have been made than dropped; otherwise after every few hundred."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, Python looks for garbage rarely: a simulation or a load test keeps nearly all that it makes."""
    thresholds = gc.get_threshold()
    gc.freeze()  # what importing has made will stay
    gc.set_threshold(OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()

"""How tests wait: for something to become true, not for some time. How fast a machine is decides nothing."""

import time
from collections.abc import Callable

PATIENCE_S = 180.0
"""What is waited for takes milliseconds: this is for errors that hold it up for ever."""


def wait_for(condition: Callable[[], object], told: str) -> None:
    """Returns as soon as it holds.

    Raises:
        AssertionError: it never did; `told` says what was waited for.
    """
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_S:g} s in vain: {told}"
        time.sleep(0.002)

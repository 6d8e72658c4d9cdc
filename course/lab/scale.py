"""How much a lesson plays: all of it, or the short form that tests and a first look take (MINILLM_SHORT=1)."""

import os

ENGINE_SHARE = 0.34
"""The share of a workload that the real engine plays in the short form."""
SIMULATED_SHARE = 0.25
"""The share of a simulation's requests that are played in the short form."""


def is_short() -> bool:
    return os.environ.get("MINILLM_SHORT") == "1"


def scale_of(short: bool | None) -> float:
    """The scale of a lab's workloads.

    Args:
        short: None = as the environment says.
    """
    return ENGINE_SHARE if (is_short() if short is None else short) else 1.0


def enough(count: int, least: int) -> int:
    """So many simulated requests; in the short form a share of them, but not less than `least`."""
    return max(least, round(count * SIMULATED_SHARE)) if is_short() else count

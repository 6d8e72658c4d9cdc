"""What queueing theory expects. Waits are in service times: 2 means "as long as two people take to be served"."""

from collections.abc import Sequence


def md1_wait(load: float) -> float:
    """Mean wait in line: one seat, visitors at random moments (M), all served in the same time (D).

    Pollaczek and Khinchine's formula without variance: load / (2 (1 - load)). Without end at a load of 1 and more.
    """
    return mg1_wait(load, 0.0)


def mg1_wait(load: float, variation: float) -> float:
    """The same when service times differ.

    Args:
        load: arrival rate x mean service time, from 0 to below 1.
        variation: standard deviation of the service time over its mean; 0 = all equal, 1 = exponential.
    """
    if load < 0:
        raise ValueError(f"a load is 0 or more, not {load}")
    return float("inf") if load >= 1 else (1 + variation**2) / 2 * load / (1 - load)


def waits_of_these(arrivals: Sequence[float], service: float) -> list[float]:
    """The waits of these very visitors, one seat, first come first served: Lindley's recursion.

    Each waits for what is left of the one before: wait + service - gap, or not at all.
    """
    waits, free_at = [], 0.0
    for arrival in arrivals:
        start = max(arrival, free_at)
        waits.append(start - arrival)
        free_at = start + service
    return waits

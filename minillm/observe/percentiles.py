"""Percentiles, as everything here takes them: over raw samples, by linear interpolation."""

import math
from collections.abc import Collection


def percentile(samples: Collection[float], q: float) -> float:
    """The q-th percentile (0 to 100), as `numpy.percentile` computes it: to the last bit.

    Raises:
        ValueError: there are no samples.
    """
    if not len(samples):
        raise ValueError("no percentile of no samples")
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * (q / 100)
    low = ordered[math.floor(rank)]
    high = ordered[math.ceil(rank)]
    share = rank - math.floor(rank)
    if share < 0.5:
        return float(low + (high - low) * share)
    return float(high - (high - low) * (1 - share))  # from the nearer end: so it never passes it by rounding

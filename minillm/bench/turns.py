"""How every comparison here is measured: all take turns within each round (A B C, A B C, ...).

So a slow spell of the machine hits all of them, and ratios can be formed within a round before their median is
taken.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tqdm import tqdm

K = TypeVar("K")
T = TypeVar("T")


def in_turns(
    measurements: Mapping[K, Callable[[], T]], repeats: int, *, warm_up: bool = True, label: str = "measuring"
) -> dict[K, list[T]]:
    """What each measurement gave: a result a round. With `warm_up`, one more round comes first, and is dropped."""
    results: dict[K, list[T]] = {name: [] for name in measurements}
    for number in tqdm(range(-warm_up, repeats), desc=label, unit="round"):
        for name, measure in measurements.items():
            result = measure()
            if number >= 0:
                results[name].append(result)
    return results

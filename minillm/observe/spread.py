"""A few repeats of one measurement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minillm.observe.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few repeats, with the smallest and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(percentile(values, 50), min(values), max(values))

    @classmethod
    def of_ratios(cls, numerators: Iterable[float], denominators: Iterable[float]) -> "Spread":
        """Ratios formed within a repeat: a slow spell of the machine is in both numbers, and cancels."""
        return cls.of([above / below for above, below in zip(numerators, denominators, strict=True)])

    def text(self, digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
        """`1.23x [1.20-1.30]`."""
        median, low, high = (f"{scale * value:.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median}{unit} [{low}-{high}]"

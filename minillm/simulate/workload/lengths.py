"""How many tokens: length distributions, each given as its quantile function.

`at(u)` is the length that a share u of all requests stay below. Feeding it uniform random numbers samples
the distribution (inverse transform sampling), and each sample uses exactly one of them. So a run with
other lengths still draws the same u for the same request: the short stay short, the long stay long.
"""

import bisect
import itertools
import math
from statistics import NormalDist

from pydantic import Field, field_validator, model_validator

from minillm.core.errors import WorkloadError
from minillm.core.params import StrictModel


class LengthModel(StrictModel):
    """Base of the distributions of lengths, which are pydantic models."""

    _error: type[Exception] = WorkloadError


class Fixed(LengthModel):
    """Always the same."""

    tokens: int = Field(ge=1, description="tokens")

    def at(self, u: float) -> int:
        return self.tokens


class Uniform(LengthModel):
    """Every length from low to high is equally likely."""

    low: int = Field(ge=1, description="shortest, tokens")
    high: int = Field(ge=1, description="longest, tokens")

    @model_validator(mode="after")
    def _ascends(self) -> "Uniform":
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) must be at least low ({self.low})")
        return self

    def at(self, u: float) -> int:
        return self.low + int(u * (self.high - self.low + 1))


class LogNormal(LengthModel):
    """Most are short, some are very long: the logarithm is normal."""

    median: float = Field(ge=1, description="tokens")
    sigma: float = Field(gt=0, le=4, description="standard deviation of the logarithm; 1 = p84 is e times the median")
    low: int = Field(1, ge=1, description="shorter ones are made this long, tokens")
    high: int = Field(131072, ge=1, description="longer ones are made this long, tokens")

    @model_validator(mode="after")
    def _ascends(self) -> "LogNormal":
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) must be at least low ({self.low})")
        return self

    def at(self, u: float) -> int:
        z = NormalDist().inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
        return min(max(round(self.median * math.exp(self.sigma * z)), self.low), self.high)


class Quantiles(LengthModel):
    """A measured distribution, by a few of its quantiles; in between, the logarithm runs straight."""

    points: tuple[tuple[float, float], ...] = Field(min_length=2, description="(share below, tokens), from 0 to 1")

    @field_validator("points")
    @classmethod
    def _ascend(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        shares, tokens = zip(*points)
        if shares[0] != 0 or shares[-1] != 1:
            raise ValueError("the first share must be 0 and the last 1")
        if any(b <= a for a, b in itertools.pairwise(shares)) or any(b < a for a, b in itertools.pairwise(tokens)):
            raise ValueError("shares must ascend, and tokens must not descend")
        if tokens[0] < 1:
            raise ValueError("a length is at least 1 token")
        return points

    def at(self, u: float) -> int:
        i = min(bisect.bisect_right(self.points, u, key=lambda point: point[0]), len(self.points) - 1)
        (u0, low), (u1, high) = self.points[i - 1], self.points[i]
        return round(low * (high / low) ** ((u - u0) / (u1 - u0)))


Lengths = Fixed | Uniform | LogNormal | Quantiles

# Shaped like the two traces of Microsoft's Azure LLM inference service, November 2023 (CC-BY; Patel et al.,
# "Splitwise", ISCA 2024). Prompt and output lengths are nearly uncorrelated there (r = 0.09 and 0.00 between
# the logarithms), so each is drawn on its own.

AZURE_CHAT_PROMPT = Quantiles(
    points=(
        (0.0, 2), (0.01, 29), (0.02, 91), (0.05, 181), (0.1, 207), (0.15, 372), (0.3, 403), (0.38, 433), (0.4, 703),
        (0.42, 903), (0.44, 971), (0.5, 1020), (0.75, 1189), (0.8, 1315), (0.82, 1368), (0.85, 1876), (0.9, 2734),
        (0.92, 4073), (0.97, 4090), (0.99, 4142), (0.999, 6179), (1.0, 14050),
    )
)  # fmt: skip
AZURE_CHAT_OUTPUT = Quantiles(
    points=(
        (0.0, 7), (0.01, 16), (0.05, 41), (0.1, 54), (0.2, 77), (0.4, 103), (0.5, 129), (0.6, 177), (0.7, 384),
        (0.8, 400), (0.9, 424), (0.95, 451), (0.97, 509), (0.99, 601), (0.999, 954), (1.0, 1000),
    )
)  # fmt: skip
AZURE_CODE_PROMPT = Quantiles(
    points=(
        (0.0, 3), (0.01, 17), (0.05, 75), (0.1, 147), (0.2, 386), (0.3, 770), (0.4, 1075), (0.5, 1469), (0.6, 1909),
        (0.75, 2744), (0.8, 3192), (0.85, 3920), (0.9, 5188), (0.95, 7303), (0.97, 7435), (1.0, 7437),
    )
)  # fmt: skip
AZURE_CODE_OUTPUT = Quantiles(
    points=(
        (0.0, 6), (0.05, 6), (0.1, 7), (0.2, 8), (0.3, 9), (0.4, 11), (0.5, 13), (0.6, 16), (0.7, 20), (0.8, 29),
        (0.85, 39), (0.9, 55), (0.95, 90), (0.97, 128), (0.98, 171), (0.99, 251), (0.996, 397),
        (0.998, 666), (0.999, 825), (1.0, 1899),
    )
)  # fmt: skip

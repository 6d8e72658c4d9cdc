"""How many tokens: length distributions, each given as its quantile function.

`at(u)` is the length that a share u of all requests stay below. Feeding it uniform random numbers samples
the distribution (inverse transform sampling), and each sample uses exactly one of them. So a run with
other lengths still draws the same u for the same request: the short stay short, the long stay long.
"""

import bisect
import itertools
import json
import math
from pathlib import Path
from statistics import NormalDist

from pydantic import Field, field_validator, model_validator

from course.simulator.workload.streams import WorkloadModel


class Fixed(WorkloadModel):
    """Always the same."""

    tokens: int = Field(ge=1, description="tokens")

    def at(self, u: float) -> int:
        return self.tokens


class Between(WorkloadModel):
    """Lengths with a shortest and a longest."""

    low: int = Field(ge=1, description="shortest, tokens")
    high: int = Field(ge=1, description="longest, tokens")

    @model_validator(mode="after")
    def _ascends(self) -> "Between":
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) must be at least low ({self.low})")
        return self


class Uniform(Between):
    """Every length from low to high is equally likely."""

    def at(self, u: float) -> int:
        return self.low + int(u * (self.high - self.low + 1))


class LogNormal(Between):
    """Most are short, some are very long: the logarithm is normal."""

    median: float = Field(ge=1, description="tokens")
    sigma: float = Field(gt=0, le=4, description="standard deviation of the logarithm; 1 = p84 is e times the median")
    low: int = Field(1, ge=1, description="shorter ones are made this long, tokens")
    high: int = Field(131072, ge=1, description="longer ones are made this long, tokens")

    def at(self, u: float) -> int:
        z = NormalDist().inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
        return min(max(round(self.median * math.exp(self.sigma * z)), self.low), self.high)


class Quantiles(WorkloadModel):
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

AZURE = {
    name: Quantiles(points=points)
    for name, points in json.loads((Path(__file__).parent / "azure.json").read_text()).items()
}
"""chat_prompt, chat_output, code_prompt, code_output."""

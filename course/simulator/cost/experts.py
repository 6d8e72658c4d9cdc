"""Expert parallelism: whole experts on each rank, and how much more the busiest rank has to do than the others.

Attention is sliced as in tensor parallelism, but of E experts each of M ranks has E / M whole ones (GShard, Lepikhin et
al. 2020). In a sparse layer, two all-to-alls replace the MLP's all-reduce: dispatch sends every token to the ranks
that have its k experts, combine brings the outputs back. A layer is done when its busiest rank is.

If each of T tokens draws k experts, all equally likely, a rank has T k / M rows to multiply on average. The busiest
rank is expected to have

    μ + z sqrt(μ (E - N) / (E - 1))    with μ = T k / M, N = k, z = Φ⁻¹((M - 3/8) / (M + 1/4))

of them, with their number taken for normally distributed (z is where the largest of M normal numbers is expected: Blom
1958). And it reads as many distinct experts with N = E (1 - (1 - k/E)^T), which all ranks read together, and μ = N / M.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

Number = Any
"""A float, or a numpy array of floats: one for each step."""
Maximum = Callable[[Number, Number], Number]


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """E experts on M ranks, and what to expect of the busiest rank in one layer."""

    num_experts: int
    experts_per_token: int
    ranks: int
    skew: float
    """The busiest rank's long-run share of the rows, in even shares."""

    def rows(self, tokens: Number, maximum: Maximum = max) -> Number:
        """Its rows: one for each token that it computes with one of its experts.

        Args:
            tokens: T.
            maximum: `max`, or `numpy.maximum` when `tokens` is an array.
        """
        mean = self.skew * self.even_rows(tokens)
        most = tokens * min(self.experts_per_token, self.num_experts // self.ranks)
        return self._largest(mean, self.experts_per_token, most, maximum)

    def even_rows(self, tokens: Number) -> Number:
        """Rows that each rank would compute if all had the same."""
        return tokens * self.experts_per_token / self.ranks

    def woken(self, tokens: Number, maximum: Maximum = max) -> Number:
        """`share_woken`, if all ranks read as many experts as the busiest. Arguments: as of `rows`."""
        idle = max(self.num_experts - self.experts_per_token, 1)
        return (self.ranks * self.experts(tokens, maximum) - self.experts_per_token) / idle

    def experts(self, tokens: Number, maximum: Maximum = max) -> Number:
        """Distinct experts that it reads. Arguments: as of `rows`."""
        own = self.num_experts // self.ranks
        mean = own * (1 - (1 - self.skew * self.experts_per_token / self.num_experts) ** tokens)
        return self._largest(mean, mean * self.ranks, own, maximum)

    def _largest(self, mean: Number, drawn: Number, most: Number, maximum: Maximum) -> Number:
        deviation = (mean * maximum(self.num_experts - drawn, 0.0) / max(self.num_experts - 1, 1)) ** 0.5
        z = NormalDist().inv_cdf((self.ranks - 3 / 8) / (self.ranks + 1 / 4))
        return -maximum(-(mean + z * deviation), -most)  # at most that many

"""Expert parallelism: whole experts on each rank, and how much more the busiest rank has to do than the others.

Attention is sliced as in tensor parallelism, but of E experts each of M ranks has E / M whole ones (GShard, Lepikhin et
al. 2020). All ranks have all tokens then, and the MLP's all-reduce adds up what each rank's experts made of them. With
data-parallel attention a token is on one rank only, so two all-to-alls replace it: dispatch sends every token to the
ranks that have its k experts, combine brings the outputs back. A layer is done when its busiest rank is.

If each of T tokens draws k experts, all equally likely, a rank has T k / M rows to multiply on average. The busiest
rank is expected to have

    μ + z sqrt(μ (E - N) / (E - 1))    with μ = T k / M, N = k, z = Φ⁻¹((M - 3/8) / (M + 1/4))

of them, with their number taken for normally distributed (z is where the largest of M normal numbers is expected: Blom
1958). And it reads as many distinct experts with N = E (1 - (1 - k/E)^T), which all ranks read together, and μ = N / M.
"""

from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """E experts on M ranks, and what to expect of the busiest rank in one layer."""

    num_experts: int
    experts_per_token: int
    ranks: int
    skew: float
    """The busiest rank's long-run share of the rows, in even shares."""

    def rows(self, tokens: float) -> float:
        """Its rows: one for each token that it computes with one of its experts."""
        mean = self.skew * self.even_rows(tokens)
        most = tokens * min(self.experts_per_token, self.num_experts // self.ranks)
        return self._largest(mean, self.experts_per_token, most)

    def even_rows(self, tokens: float) -> float:
        """Rows that each rank would compute if all had the same."""
        return tokens * self.experts_per_token / self.ranks

    def visits(self, tokens: float) -> float:
        """Tokens that have one of its experts or more: each is sent to it once."""
        missed = (1 - 1 / self.ranks) ** self.experts_per_token
        return min(self.skew * tokens * (1 - missed), tokens)

    def woken(self, tokens: float) -> float:
        """`share_woken`, if all ranks read as many experts as the busiest."""
        idle = max(self.num_experts - self.experts_per_token, 1)
        return (self.ranks * self.experts(tokens) - self.experts_per_token) / idle

    def experts(self, tokens: float) -> float:
        """Distinct experts that it reads."""
        own = self.num_experts // self.ranks
        mean = own * (1 - (1 - self.skew * self.experts_per_token / self.num_experts) ** tokens)
        return self._largest(mean, mean * self.ranks, own)

    def _largest(self, mean: float, drawn: float, most: float) -> float:
        deviation = (mean * max(self.num_experts - drawn, 0.0) / max(self.num_experts - 1, 1)) ** 0.5
        z = NormalDist().inv_cdf((self.ranks - 3 / 8) / (self.ranks + 1 / 4))
        return min(mean + z * deviation, most)

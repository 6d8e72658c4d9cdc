"""Floating-point operations (FLOPs) of a model that minillm has a decoder for, counted from its config.json alone.

    FLOPs per token = 2 x parameters of the matrices it goes through

A product of [m, k] and [k, n] is 2 m k n FLOPs: a multiplication and an addition for each of the m k n pairs (Kaplan et
al. 2020, "Scaling Laws for Neural Language Models", section 2.1).
"""

from dataclasses import dataclass

from minillm.model.arithmetic import ModelSize
from minillm.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Floating-point operations of the matrix products; norms, rotations and softmax are small beside them."""

    per_token: int
    """FLOPs of all layers' matrices, for one token."""
    per_logit_row: int
    """FLOPs of the output head, which only tokens that yield logits go through."""
    per_pair: int
    """FLOPs of attention over all layers, for one query token looking at one key: q k^T, then weights times v."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelFlops":
        model = ModelSize.of(config)
        return cls(2 * model.layer_params, 2 * model.head_params, 4 * model.layers * model.query_size)

    def prefill(self, num_tokens: int) -> float:
        """One prompt in one step: its last row yields logits."""
        return self.per_token * num_tokens + self.per_logit_row + self.per_pair * causal_pairs(num_tokens)


def causal_pairs(num_tokens: int, num_cached: int = 0) -> float:
    """(query, key) pairs that causal attention of new tokens needs: all the cached ones, and half of the square.

    The half is n^2 / 2, as FlashAttention's authors count; with the diagonal it would be n (n + 1) / 2.
    """
    return num_tokens * (num_cached + num_tokens / 2)

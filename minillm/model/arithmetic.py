"""Model arithmetic: parameters, bytes and floating-point operations (FLOPs), counted from a config.json alone.

    KV bytes per token = layers x vectors x (numbers in a vector x bytes of a number + bytes of its scale)
    FLOPs per token    = 2 x parameters of the matrices it goes through

A product of [m, k] and [k, n] is 2 m k n FLOPs: a multiplication and an addition for each of the m k n pairs (Kaplan et
al. 2020, "Scaling Laws for Neural Language Models", section 2.1). Nothing here is measured, and nothing imports torch:
the engine's KV pool, benchmarks and the simulator all count with these classes. What weights of other kinds cost is in
course/simulator/cost/sizes.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from minillm.model.config import ModelConfig

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
"""Bytes of one number, without a scale: what a KV cache can be stored in."""
SCALED = ("int8", "fp8")
"""Dtypes in which every vector of the KV cache has a scale."""
SCALE_BYTES = 2


def kv_bytes(layers: int, vectors: int, size: int, dtype: str) -> int:
    """What one token takes in a KV cache, its scales included.

    Args:
        vectors: that it has in one layer, of `size` numbers each.
        dtype: a key of NUMBER_BYTES.
    """
    return layers * vectors * (size * NUMBER_BYTES[dtype] + (SCALE_BYTES if dtype in SCALED else 0))


def kv_bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Keys and values of one token over all layers: one of each for every KV head."""
    return kv_bytes(config.num_layers, 2 * config.num_kv_heads, config.head_dim, dtype)


def share_woken(skip: float, tokens: Any) -> Any:
    """The share of the experts that one token leaves idle that a step reads all the same, for its other tokens.

    Each of those skips an expert with chance `skip` = 1 - k/E, so a step of B tokens is expected to read
    k + (E - k) (1 - skip^(B - 1)) = E (1 - (1 - k/E)^B) of E experts (Huang et al. 2025, "MoESD", arXiv 2505.19645).
    That takes all experts to be equally likely, for every token anew. Real texts have favourites: they read fewer.

    Args:
        tokens: B, a number or a numpy array of them.
    """
    return 1 - skip ** (tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The sizes that bytes and FLOPs follow from. Parameters in elements."""

    layers: int
    query_size: int
    """Query heads x head size: attention's width."""
    layer_params: int
    """Matrices of all layers that a token goes through: all but the experts that it doesn't choose."""
    small_params: int
    """Norms and biases: they are read, and are almost no work."""
    head_params: int
    """The output head: only rows that sample go through it."""
    idle_params: int = 0
    """Mixture of experts: matrices of the E - k experts that a token doesn't choose, over all layers."""
    skip: float = 1.0
    """Chance that a token doesn't choose an expert: 1 - k/E."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelSize":
        """The size of a model that minillm has a decoder for."""
        hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        norms = 2 * hidden + (2 * config.head_dim if config.qk_norm else 0)
        biases = config.qkv_bias * (query + 2 * kv) + config.o_bias * hidden + config.mlp_bias * (2 * inner + hidden)
        sparse, chosen, all_experts = len(config.sparse_layers), config.num_experts_per_tok, config.num_experts
        expert = 3 * hidden * config.moe_intermediate_size
        mlps = (layers - sparse) * 3 * hidden * inner + sparse * (all_experts * hidden + chosen * expert)
        return ModelSize(
            layers=layers,
            query_size=query,
            layer_params=layers * (hidden * (query + 2 * kv) + query * hidden) + mlps,
            small_params=layers * (norms + biases) + hidden,
            head_params=config.vocab_size * hidden,
            idle_params=sparse * (all_experts - chosen) * expert,
            skip=1 - chosen / max(all_experts, 1),
        )

    @property
    def read_params(self) -> int:
        """Parameters that every step reads from memory, were it for one token."""
        return self.layer_params + self.small_params + self.head_params


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What a decode step must read."""

    weights: int
    """Bytes of all matrices and norms that one token goes through; an embedding table only if it is also the head."""
    kv_per_token: int
    """Bytes of keys and values of one token, over all layers."""
    idle: int = 0
    """Bytes of the experts that one token doesn't choose."""
    skip: float = 1.0
    """See ModelSize."""

    @classmethod
    def of(cls, config: ModelConfig, dtype: str) -> "ModelBytes":
        """Count them as if all were stored in `dtype`."""
        model, size = ModelSize.of(config), NUMBER_BYTES[dtype]
        kv = kv_bytes_per_token(config, dtype)
        return cls(model.read_params * size, kv, model.idle_params * size, model.skip)

    def step(self, context_lens: Iterable[float]) -> float:
        """Bytes that a decode step over sequences of these context lengths (tokens) must read."""
        contexts = list(context_lens)
        experts = self.idle * share_woken(self.skip, len(contexts))
        return self.weights + experts + self.kv_per_token * sum(contexts)

    def step_floor(self, context_lens: Iterable[float], read_bandwidth: float) -> float:
        """Seconds of reading in such a step, at `read_bandwidth` bytes per second."""
        return self.step(context_lens) / read_bandwidth


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

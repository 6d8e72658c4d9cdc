"""What a model asks of the hardware: bytes to read and operations to do, counted from its shape.

Counted, not measured, and from config.json alone, so that a model of random weights has a count, too.
A product of [m, k] and [k, n] is 2 m k n floating-point operations (FLOP): a multiplication and an
addition for each of the m k n pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minillm.model.config import ModelConfig
from minillm.model.kv_cache_size import NUMBER_BYTES


def layer_linear_parameters(config: ModelConfig) -> int:
    """Weights, without biases, of one layer's matrices: q, k, v, o, gate, up, down."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads  # q and o; k and v
    return config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)


def head_parameters(config: ModelConfig) -> int:
    """Weights of the output head: a row for every token of the vocabulary."""
    return config.vocab_size * config.hidden_size


def parameters_read_per_step(config: ModelConfig) -> int:
    """Every matrix, bias and norm once. An untied embedding table gives one row per token: nothing beside the rest."""
    attention_rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    biases = config.qkv_bias * attention_rows + config.o_bias * config.hidden_size
    biases += config.mlp_bias * (2 * config.intermediate_size + config.hidden_size)
    norms = 2 * config.hidden_size + config.qk_norm * 2 * config.head_dim
    layer = layer_linear_parameters(config) + biases + norms
    return config.num_layers * layer + config.hidden_size + head_parameters(config)


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What a decode step must read."""

    weights: int
    """Bytes of all matrices and norms; an embedding table only if it is also the output head."""
    kv_per_token: int
    """Bytes of keys and values of one token, over all layers."""

    @classmethod
    def of(cls, config: ModelConfig, dtype: str) -> "ModelBytes":
        """Count them as if all were stored in `dtype`."""
        size = NUMBER_BYTES[dtype]
        return cls(parameters_read_per_step(config) * size, config.kv_bill.bytes_per_token(dtype))

    def step(self, context_lens: Iterable[float]) -> float:
        """Bytes that a decode step over sequences of these context lengths (tokens) must read."""
        return self.weights + self.kv_per_token * sum(context_lens)

    def step_floor(self, context_lens: Iterable[float], read_bandwidth: float) -> float:
        """Seconds of reading in such a step, at `read_bandwidth` bytes per second."""
        return self.step(context_lens) / read_bandwidth


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Floating-point operations of the matrix products; norms, rotations and softmax are next to nothing."""

    per_token: int
    """Of all layers' matrices, for one token."""
    per_logit_row: int
    """Of the output head, which only tokens that yield logits go through."""
    per_pair: int
    """Of attention over all layers, for one query token looking at one key: q k^T, then weights times v."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelFlops":
        return cls(
            per_token=2 * config.num_layers * layer_linear_parameters(config),
            per_logit_row=2 * head_parameters(config),
            per_pair=4 * config.num_layers * config.num_heads * config.head_dim,
        )

    def prefill(self, num_tokens: int, num_cached: int = 0) -> float:
        """One prompt in one step: its last row yields logits."""
        pairs = causal_pairs(num_tokens, num_cached)
        return self.per_token * num_tokens + self.per_logit_row + self.per_pair * pairs

    def decode(self, context_lens: Sequence[float]) -> float:
        """One new token for each sequence, over contexts of these lengths (tokens, the new one included)."""
        linear = (self.per_token + self.per_logit_row) * len(context_lens)
        return linear + self.per_pair * sum(context_lens)


def causal_pairs(num_tokens: int, num_cached: int = 0) -> float:
    """(query, key) pairs that causal attention of new tokens needs: all the cached ones, and half of the square.

    The half is n^2 / 2, as FlashAttention's authors count; with the diagonal it would be n (n + 1) / 2.
    """
    return num_tokens * (num_cached + num_tokens / 2)

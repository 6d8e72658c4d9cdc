"""Rotary position embedding (Su et al. 2021, RoFormer), and the ways to stretch it over longer contexts.

Dimensions i and i + d/2 of a head form a pair that is turned by the angle position * frequency[i]. The
dot product of a turned query and a turned key then depends on their distance alone. Scaling changes
the frequencies only, so every variant is one function from the config to d/2 numbers.
"""

import math
from typing import Any

import torch
from torch import Tensor

from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "longrope", "yarn")


class RotaryEmbedding:
    """Turns queries and keys by their positions.

    Args:
        rope: rope_type, rope_theta and the type's own parameters; see ModelConfig.rope.
        head_dim: d, size of a head.
    Raises:
        UnsupportedArchitectureError: the rope type is not one of ROPE_TYPES.
        CorruptCheckpointError: a parameter the type needs is missing.
    """

    def __init__(self, rope: dict[str, Any], head_dim: int, device: torch.device) -> None:
        frequencies, self.magnitude = inverse_frequencies(rope, head_dim)
        # With the sign in the sine, a turn is x * cos + swapped(x) * sin.
        self.frequencies = torch.cat((-frequencies, frequencies)).to(device)
        """[d]: of each dimension, those of the first half negated"""

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin of every token's angles, [T, 1, d] each. Taken once a step, for all layers."""
        angles = positions[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.magnitude != 1.0:  # on a GPU each operation is a launch, whether it changes anything or not
            cos, sin = cos * self.magnitude, sin * self.magnitude
        return cos.to(dtype), sin.to(dtype)


def inverse_frequencies(rope: dict[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """The d/2 frequencies, radians per position, and the factor that cos and sin are multiplied by."""
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedArchitectureError(
            f"config.json: rope_parameters has partial_rotary_factor={rope['partial_rotary_factor']!r}, and these "
            "decoders turn the whole head"
        )
    kind = rope["rope_type"]
    base = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    try:
        if kind == "default":
            return base, 1.0
        if kind == "linear":  # positions squeezed evenly (kaiokendev 2023)
            return base / rope["factor"], 1.0
        if kind == "dynamic":
            # Changes the frequencies only beyond max_position_embeddings (NTK-aware, bloc97 2023). Keys in
            # the cache were turned by the old ones, so ModelConfig ends the context there.
            return base, 1.0
        if kind == "llama3":
            return _llama3(base, rope), 1.0
        if kind == "longrope":
            return _longrope(base, rope)
        if kind == "yarn":
            return _yarn(base, rope, head_dim)
    except KeyError as missing:
        raise CorruptCheckpointError(f"config.json: rope type {kind!r} needs {missing}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CorruptCheckpointError(f"config.json: {rope} is no rotary embedding ({error})") from None
    raise UnsupportedArchitectureError(f"rope type {kind!r}: minillm has {', '.join(ROPE_TYPES)}")


def _llama3(base: Tensor, rope: dict[str, Any]) -> Tensor:
    """Llama 3.1: slow pairs are slowed down by `factor`, fast ones are kept, with a blend between."""
    # Full turns each pair makes over the original context:
    turns = rope["original_max_position_embeddings"] * base / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    if high <= low:
        raise ValueError("high_freq_factor has to be above low_freq_factor")
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * base + (1 - keep) * base / rope["factor"]


def _longrope(base: Tensor, rope: dict[str, Any]) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024): a divisor for each pair. A second set for longer contexts is not used: ModelConfig
    ends the context before it."""
    divisors = torch.tensor(rope["short_factor"], dtype=torch.float32)
    if divisors.shape != base.shape or not bool((divisors > 0).all()):
        raise CorruptCheckpointError(f"config.json: rope's short_factor has to be {len(base)} positive numbers")
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or rope["max_position_embeddings"] / original
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return base / divisors, magnitude


def _yarn(base: Tensor, rope: dict[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): like Llama 3.1's, blended by pair index, and attention made sharper."""
    original = rope["original_max_position_embeddings"]
    factor = rope["factor"] or rope["max_position_embeddings"] / original

    def pair_with(turns: float) -> float:
        """The (fractional) dimension whose pair makes this many turns over the original context."""
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = pair_with(rope.get("beta_fast") or 32), pair_with(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2).float() - low) / ((high - low) or 0.001)
    slow = ramp.clamp(0, 1)
    return slow * base / factor + (1 - slow) * base, _yarn_magnitude(rope, factor)


def _yarn_magnitude(rope: dict[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return magnitude(rope["mscale"]) / magnitude(rope["mscale_all_dim"])
    return magnitude(1.0)

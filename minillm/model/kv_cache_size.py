"""The KV bill: what keys and values take, by a model's shape alone; the engine's pool is sized by it.

    bytes per token = layers x vectors x (numbers of a vector x bytes of a number + bytes of its scale)

- multi-head attention (MHA): a key and a value for each head
- grouped-query (GQA, Ainslie et al. 2023), multi-query (MQA, Shazeer 2019): for each group of heads, or one for all
- latent (MLA, DeepSeek-V2, 2024): one compressed vector for all heads, with a small rotated key beside it. minillm has
  no decoder for it, only the bill.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minillm.core.errors import ConfigError
from minillm.policies.window import Window

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
"""Of one number, without a scale."""
SCALED = ("int8", "fp8")
"""Every vector of these has a scale."""
SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """What one token leaves in the cache."""

    kind: str
    """MHA, GQA, MQA or MLA."""
    layers: int
    vectors: int
    """Of one token in one layer."""
    vector_size: int
    """Numbers in each."""

    @classmethod
    def of_heads(cls, layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> "KVCacheSize":
        kind = "MHA" if num_kv_heads == num_heads else "MQA" if num_kv_heads == 1 else "GQA"
        return cls(kind, layers, 2 * num_kv_heads, head_dim)

    @classmethod
    def of_config(cls, hf: Mapping[str, Any]) -> "KVCacheSize":
        """From a parsed config.json, of any decoder-only model.

        Raises:
            ConfigError: a size is missing.
        """
        try:
            layers, heads = hf["num_hidden_layers"], hf["num_attention_heads"]
            if hf.get("kv_lora_rank"):
                return cls("MLA", layers, 1, hf["kv_lora_rank"] + hf["qk_rope_head_dim"])
            head_dim = hf.get("head_dim") or hf["hidden_size"] // heads
        except KeyError as missing:
            raise ConfigError(f"config.json has no {missing}: it does not describe a decoder's attention") from None
        return cls.of_heads(layers, heads, hf.get("num_key_value_heads") or heads, head_dim)

    def bytes_per_token(self, dtype: str) -> int:
        """Over all layers, the scales included.

        Args:
            dtype: of NUMBER_BYTES.
        """
        vector = self.vector_size * NUMBER_BYTES[dtype] + (SCALE_BYTES if dtype in SCALED else 0)
        return self.layers * self.vectors * vector

    def bytes_of(self, num_tokens: int, dtype: str, block_size: int, window: Window | None = None) -> int:
        """What a sequence of `num_tokens` holds once all of them are computed, in whole blocks."""
        num_blocks = (window or Window()).blocks_held(num_tokens, block_size)
        return num_blocks * block_size * self.bytes_per_token(dtype)

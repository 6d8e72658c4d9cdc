"""What a model takes in memory: weights by dtype (fp4, too, which is only priced here) and tokens in the KV cache."""

import dataclasses
import math
from dataclasses import dataclass

from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import NUMBER_BYTES, ModelSize, kv_bytes, share_woken
from minillm.model.config import ModelConfig

DTYPE_BYTES: dict[str, float] = {**NUMBER_BYTES, "int4": 0.5, "fp4": 0.5}
"""Bytes of one number, without a scale: what weights can be stored in."""
LAYER_BYTES = {**DTYPE_BYTES, "int4": 0.5 + 4 / 32, "fp4": 0.5 + 1 / 16}
"""Per weight of a layer's matrices: int4 has a scale and an offset of 2 bytes for each group of 32; fp4 a scale of one
byte for each group of 16 (NVFP4). The scales of int8 and fp8, one for each output, are too few to count, and so are the
16 bits that a router of experts keeps."""
HEAD_BYTES = {**DTYPE_BYTES, "int4": 1.0, "fp4": 2.0}
"""Per weight of the output head: int4 leaves it 8 bits, fp4 all 16."""
UNQUANTIZED_BYTES = {"int8": 2.0, "int4": 2.0, "fp8": 2.0, "fp4": 2.0}
"""Per number of norms, biases and a separate embedding table, where the matrices are quantized."""


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """What one token takes in the KV cache, by how the heads share keys and values.

    - multi-head attention (MHA): a key and a value for each head
    - grouped-query (GQA, Ainslie et al. 2023), multi-query (MQA, Shazeer 2019): for each group of heads, or one for all
    - latent (MLA, DeepSeek-V2, 2024): one compressed vector for all heads, with a small rotated key beside it
    """

    kind: str
    """MHA, GQA, MQA or MLA."""
    layers: int
    vectors: int
    """Vectors that one token has in one layer."""
    vector_size: int
    """Numbers in each."""

    @classmethod
    def of_heads(cls, layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> "KVCacheSize":
        kind = "MHA" if num_kv_heads == num_heads else "MQA" if num_kv_heads == 1 else "GQA"
        return cls(kind, layers, 2 * num_kv_heads, head_dim)

    @classmethod
    def of_model(cls, config: ModelConfig) -> "KVCacheSize":
        return cls.of_heads(config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim)

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes of one token's keys and values over all layers, the scales included.

        Args:
            dtype: a key of NUMBER_BYTES.
        """
        return kv_bytes(self.layers, self.vectors, self.vector_size, dtype)

    def bytes_of(self, num_tokens: int, dtype: str, block_size: int, window: Window | None = None) -> int:
        """What a sequence of `num_tokens` holds once all of them are computed, in whole blocks."""
        blocks = (window or Window()).live_blocks(num_tokens, num_tokens, block_size)
        return len(blocks) * block_size * self.bytes_per_token(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost(ModelSize):
    """A model's sizes, and the bytes that it is read and stored in. Parameters in elements."""

    hidden: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """Tokens the model has positions for."""
    embedding_params: int
    """A separate embedding table; 0 if it's also the head. Stored, but one row per token is all that is read."""
    num_experts: int = 0
    """E."""
    experts_per_token: int = 0
    """k."""
    expert_params: int = 0
    """Matrices of one expert in each of the sparse layers."""
    sparse_layers: int = 0
    """Layers with experts."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelCost":
        sparse = len(config.sparse_layers)
        return ModelCost(
            **dataclasses.asdict(ModelSize.of(config)),
            hidden=config.hidden_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_context=config.max_position_embeddings,
            embedding_params=0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size,
            num_experts=config.num_experts,
            experts_per_token=config.num_experts_per_tok,
            expert_params=sparse * 3 * config.hidden_size * config.moe_intermediate_size,
            sparse_layers=sparse,
        )

    @property
    def active_params(self) -> int:
        """Parameters that one token uses, counted as publishers do: the "A3B" of Qwen3-30B-A3B."""
        return self.read_params + self.embedding_params

    def read_bytes(self, dtype: str, tokens: float = 1) -> float:
        """What a step of so many tokens is expected to read, stored as the engine stores it (model/quantized.py). Only
        a mixture of experts reads more for more tokens."""
        matrices = self.layer_params + self.idle_params * share_woken(self.skip, tokens)
        rest = self.small_params * UNQUANTIZED_BYTES.get(dtype, DTYPE_BYTES[dtype])
        return matrices * LAYER_BYTES[dtype] + self.head_params * HEAD_BYTES[dtype] + rest

    def stored_bytes(self, dtype: str) -> float:
        table = self.embedding_params * UNQUANTIZED_BYTES.get(dtype, DTYPE_BYTES[dtype])
        return self.read_bytes(dtype, math.inf) + table

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token over all layers, with their scales."""
        heads = self.query_size // self.head_dim
        return KVCacheSize.of_heads(self.layers, heads, self.num_kv_heads, self.head_dim).bytes_per_token(dtype)

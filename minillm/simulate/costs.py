"""What a model costs by its shape alone: parameters, bytes and floating-point operations.

    KV bytes per token = 2 (key and value) x layers x KV heads x (head size x bytes + bytes of a scale)
    FLOPs per token    = 2 x parameters of the matrices it goes through

(Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1, has the second.)
"""

from dataclasses import dataclass, replace

from minillm.core.errors import DoesNotFitError, PricingError, UnknownModelError
from minillm.model.checkpoints import SHAPES, load_config, resolve
from minillm.model.config import ModelConfig
from minillm.model.kv_cache_size import NUMBER_BYTES, KVCacheSize
from minillm.simulate.hardware import DTYPE_BYTES, GIB, Hardware

WORKING_BYTES = 1.2e9
"""Activations, CUDA graphs and library workspaces per GPU: what vLLM 0.19 took beside weights and KV cache for
an 8B model with a budget of 2048 tokens on an RTX 4090 (from the public log that its profile is fitted to)."""
LAYER_BYTES = {**DTYPE_BYTES, "int4": 0.5 + 4 / 32}
"""Per weight of a layer's matrices: int4 has a scale and an offset of 2 bytes for each group of 32. The scales of
int8 and fp8, one for each output, are too few to count."""
HEAD_BYTES = {**DTYPE_BYTES, "int4": 1.0}
"""Per weight of the output head: int4 leaves it 8 bits."""
UNQUANTIZED_BYTES = {"int8": 2.0, "int4": 2.0, "fp8": 2.0}
"""Per number of norms, biases and an embedding table of its own, where the matrices are quantized."""
USABLE_MEMORY = 0.9
"""Share of the memory that a server takes; vLLM's `gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Sizes that a step's price is made of. Parameters in elements."""

    layers: int
    hidden: int
    query_size: int
    """Query heads x head size: attention's width."""
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """Tokens the model has positions for."""
    layer_params: int
    """Matrices of all layers: every token goes through them."""
    small_params: int
    """Norms and biases: read, but hardly any work."""
    head_params: int
    """The output head: only rows that sample go through it."""
    embedding_params: int
    """An embedding table of its own; 0 when it is the head's. Stored, but one row per token is all that is read."""

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelCost":
        hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        norms = 2 * hidden + (2 * config.head_dim if config.qk_norm else 0)
        biases = config.qkv_bias * (query + 2 * kv) + config.o_bias * hidden + config.mlp_bias * (2 * inner + hidden)
        table = config.vocab_size * hidden
        return cls(
            layers=layers,
            hidden=hidden,
            query_size=query,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_context=config.max_position_embeddings,
            layer_params=layers * (hidden * (query + 2 * kv) + query * hidden + 3 * hidden * inner),
            small_params=layers * (norms + biases) + hidden,
            head_params=table,
            embedding_params=0 if config.tie_word_embeddings else table,
        )

    @property
    def read_params(self) -> int:
        """Parameters that every step reads from memory."""
        return self.layer_params + self.small_params + self.head_params

    @property
    def stored_params(self) -> int:
        return self.read_params + self.embedding_params

    def read_bytes(self, dtype: str) -> float:
        """Of what every step reads, kept as the engine keeps it (minillm/model/quantized.py)."""
        rest = self.small_params * UNQUANTIZED_BYTES.get(dtype, DTYPE_BYTES[dtype])
        return self.layer_params * LAYER_BYTES[dtype] + self.head_params * HEAD_BYTES[dtype] + rest

    def stored_bytes(self, dtype: str) -> float:
        return self.read_bytes(dtype) + self.embedding_params * UNQUANTIZED_BYTES.get(dtype, DTYPE_BYTES[dtype])

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token, over all layers, with their scales."""
        heads = self.query_size // self.head_dim
        return KVCacheSize.of_heads(self.layers, heads, self.num_kv_heads, self.head_dim).bytes_per_token(dtype)


def find_model(name: str, kv_heads: int | None = None) -> ModelCost:
    """The costs of a packaged shape (any spelling: `Llama-3.1-8B`, `meta-llama/Llama-3.1-8B`), a config.json, a
    model folder or a Hub id.

    Args:
        kv_heads: replaces the model's own: as many as query heads is multi-head attention, 1 is multi-query.
    Raises:
        UnknownModelError: there is no such model.
        PricingError: kv_heads does not divide the query heads.
    """
    shape = name.rpartition("/")[2].lower()
    if shape in SHAPES and not name.endswith(".json"):
        path = SHAPES[shape]
    elif "/" in name or "." in name:
        path = resolve(name)
    else:
        raise UnknownModelError(f"no model {name!r}: give a config.json, a model folder, or one of {', '.join(SHAPES)}")
    config = ModelConfig.from_hf(load_config(path))
    if kv_heads is not None:
        if kv_heads < 1 or config.num_heads % kv_heads:
            raise PricingError(f"kv_heads must divide the {config.num_heads} query heads; got {kv_heads}")
        config = replace(config, num_kv_heads=kv_heads)
    return ModelCost.of(config)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which numbers the weights and the KV cache are kept in, and over how many accelerators."""

    tp: int = 1
    """Tensor parallel degree: each accelerator has a slice of every matrix (Shoeybi et al. 2019, Megatron-LM)."""
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise PricingError(f"tp must be at least 1; got {self.tp}")
        wanted = (("weights", self.weight_dtype, DTYPE_BYTES), ("KV cache", self.kv_dtype, NUMBER_BYTES))
        for what, dtype, known in wanted:
            if dtype not in known:
                raise PricingError(f"unknown dtype {dtype!r} of the {what}: choose from {', '.join(known)}")

    def check(self, model: ModelCost) -> None:
        """Raise PricingError unless the model can be cut into tp equal parts."""
        heads, kv_heads = model.query_size // model.head_dim, model.num_kv_heads
        if heads % self.tp or (kv_heads % self.tp and self.tp % kv_heads):
            raise PricingError(f"tp {self.tp} cannot share {heads} query heads and {kv_heads} KV heads evenly")

    def kv_copies(self, model: ModelCost) -> float:
        """A KV head cannot be cut: with more accelerators than KV heads, several keep the same one."""
        return max(1.0, self.tp / model.num_kv_heads)

    def weight_bytes(self, model: ModelCost) -> float:
        """Bytes of all weights, over all accelerators."""
        return model.stored_bytes(self.weight_dtype)

    def kv_bytes_per_token(self, model: ModelCost) -> float:
        """Bytes on one accelerator for each token in the cache."""
        return model.kv_bytes_per_token(self.kv_dtype) * self.kv_copies(model) / self.tp


def bytes_for_kv(model: ModelCost, memory: float, placement: Placement) -> float:
    """What weights and working memory leave on one accelerator with `memory` bytes; negative if they do not fit."""
    usable = USABLE_MEMORY * memory
    return usable - placement.weight_bytes(model) / placement.tp - min(WORKING_BYTES, usable / 10)


def kv_blocks_that_fit(model: ModelCost, hardware: Hardware, placement: Placement, block_size: int) -> int:
    """KV blocks that the memory left by the weights holds.

    Raises:
        DoesNotFitError: there is no room for one, or not even for the weights.
    """
    usable = USABLE_MEMORY * hardware.memory
    weights = placement.weight_bytes(model) / placement.tp
    block = placement.kv_bytes_per_token(model) * block_size
    free = bytes_for_kv(model, hardware.memory, placement)
    if free >= block:
        return int(free // block)
    room = usable - min(WORKING_BYTES, usable / 10)
    enough = -(-(weights + block) * placement.tp // room)
    raise DoesNotFitError(
        f"{weights / 1e9:.1f} GB of weights per accelerator leave no room for a KV block of {block / 1e6:.1f} MB in "
        f"{usable / GIB:.1f} GiB ({USABLE_MEMORY:.0%} of {hardware.name}'s memory): use at least "
        f"{enough:.0f} accelerators (--tp), narrower weights (--weight-dtype), or hardware with more memory"
    )


def check_fits(model: ModelCost, hardware: Hardware, placement: Placement, kv_bytes: float) -> None:
    """Raise DoesNotFitError if weights and a KV pool of so many bytes on each accelerator exceed its memory."""
    weights = placement.weight_bytes(model) / placement.tp
    if weights + kv_bytes > hardware.memory:
        raise DoesNotFitError(
            f"{weights / 1e9:.1f} GB of weights and {kv_bytes / 1e9:.1f} GB of KV cache per accelerator do not fit the "
            f"{hardware.memory / 1e9:.1f} GB of {hardware.name}: lower the KV blocks, or raise --tp"
        )

"""Where a model's weights and KV cache go: dtypes, tensor and pipeline parallelism, adapters, and what fits an
accelerator's memory.
"""

from dataclasses import dataclass

from minillm.core.errors import DoesNotFitError, PricingError
from minillm.model.arithmetic import DTYPE_BYTES, NUMBER_BYTES, ModelCost
from minillm.simulate.cost.hardware import GIB, Hardware
from minillm.simulate.cost.lora import NO_LORA, Lora

WORKING_BYTES = 1.2e9
"""Activations, CUDA graphs and library workspaces per GPU: what vLLM 0.19 took beside weights and KV cache for
an 8B model with a budget of 2048 tokens on an RTX 4090 (from the public log that its profile is fitted to)."""
USABLE_MEMORY = 0.9
"""Share of the memory that a server takes; vLLM's `gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which numbers the weights and the KV cache are kept in, and over how many accelerators."""

    tp: int = 1
    """Tensor parallel degree: each accelerator has a slice of every matrix (Shoeybi et al. 2019, Megatron-LM). Norms,
    which each has whole, are counted once: they are less than a thousandth."""
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    pp: int = 1
    """Pipeline stages: each has layers / pp whole layers (Huang et al. 2019, GPipe), on tp accelerators. Embedding and
    head are shared out as if they were layers, too, though in truth the first and the last stage have them."""
    lora: Lora = NO_LORA
    """Adapters that are kept beside the weights."""

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise PricingError(f"tp and pp must be at least 1; got {self.tp} and {self.pp}")
        wanted = (("weights", self.weight_dtype, DTYPE_BYTES), ("KV cache", self.kv_dtype, NUMBER_BYTES))
        for what, dtype, known in wanted:
            if dtype not in known:
                raise PricingError(f"unknown dtype {dtype!r} of the {what}: choose from {', '.join(known)}")

    def check(self, model: ModelCost) -> None:
        """Raise PricingError unless the model can be cut into tp parts and pp stages, and adapters counted."""
        heads, kv_heads = model.query_size // model.head_dim, model.num_kv_heads
        if heads % self.tp or (kv_heads % self.tp and self.tp % kv_heads):
            raise PricingError(f"tp {self.tp} cannot share {heads} query heads and {kv_heads} KV heads evenly")
        if model.layers < self.pp:
            raise PricingError(f"pp {self.pp} leaves a stage without a layer: the model has {model.layers}, lower --pp")
        self.lora.check(model)

    @property
    def accelerators(self) -> int:
        """Of one replica."""
        return self.tp * self.pp

    def kv_copies(self, model: ModelCost) -> float:
        """A KV head cannot be cut: with more accelerators than KV heads, several keep the same one."""
        return max(1.0, self.tp / model.num_kv_heads)

    def weight_bytes(self, model: ModelCost) -> float:
        """Bytes of all weights and adapters, over all accelerators."""
        return model.stored_bytes(self.weight_dtype) + self.lora.stored_bytes(model)

    def kv_bytes_per_token(self, model: ModelCost) -> float:
        """Bytes on one accelerator for each token in the cache."""
        return model.kv_bytes_per_token(self.kv_dtype) * self.kv_copies(model) / self.accelerators


def bytes_for_kv(model: ModelCost, memory: float, placement: Placement) -> float:
    """What weights and working memory leave on one accelerator with `memory` bytes; negative if they do not fit."""
    usable = USABLE_MEMORY * memory
    return usable - placement.weight_bytes(model) / placement.accelerators - min(WORKING_BYTES, usable / 10)


def kv_blocks_that_fit(model: ModelCost, hardware: Hardware, placement: Placement, block_size: int) -> int:
    """KV blocks that the memory left by the weights holds.

    Raises:
        DoesNotFitError: there is no room for one, or not even for the weights.
    """
    usable = USABLE_MEMORY * hardware.memory
    weights = placement.weight_bytes(model) / placement.accelerators
    block = placement.kv_bytes_per_token(model) * block_size
    free = bytes_for_kv(model, hardware.memory, placement)
    if free >= block:
        return int(free // block)
    room = usable - min(WORKING_BYTES, usable / 10)
    enough = -(-(weights + block) * placement.accelerators // room)
    raise DoesNotFitError(
        f"{weights / 1e9:.1f} GB of weights per accelerator leave no room for a KV block of {block / 1e6:.1f} MB in "
        f"{usable / GIB:.1f} GiB ({USABLE_MEMORY:.0%} of {hardware.name}'s memory): use at least "
        f"{enough:.0f} accelerators (--tp), narrower weights (--weight-dtype), or hardware with more memory"
    )


def check_fits(model: ModelCost, hardware: Hardware, placement: Placement, kv_bytes: float) -> None:
    """Raise DoesNotFitError if weights and a KV pool of so many bytes on each accelerator exceed its memory."""
    weights = placement.weight_bytes(model) / placement.accelerators
    if weights + kv_bytes > hardware.memory:
        raise DoesNotFitError(
            f"{weights / 1e9:.1f} GB of weights and {kv_bytes / 1e9:.1f} GB of KV cache per accelerator do not fit the "
            f"{hardware.memory / 1e9:.1f} GB of {hardware.name}: lower the KV blocks, or raise --tp"
        )

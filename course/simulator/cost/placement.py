"""Where a model's weights and KV cache go: dtypes, tensor and pipeline parallelism, adapters, and what fits an
accelerator's memory.
"""

from dataclasses import dataclass

from course.simulator.cost.experts import ExpertRanks
from course.simulator.cost.hardware import GIB, Hardware
from course.simulator.cost.lora import NO_LORA, Lora
from course.simulator.cost.models import PricedModel
from course.simulator.cost.sizes import DTYPE_BYTES
from course.simulator.errors import DoesNotFitError, PricingError
from minillm.model.arithmetic import NUMBER_BYTES

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
    which each has whole, are counted once: they are less than a thousandth. With `dp`, attention is sliced less."""
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    pp: int = 1
    """Pipeline stages: each has layers / pp whole layers (Huang et al. 2019, GPipe), on tp accelerators. Embedding and
    head are shared out as if they were layers, too, though in truth the first and the last stage have them."""
    lora: Lora = NO_LORA
    """Adapters that are kept beside the weights."""
    expert_parallel: bool = False
    """Each accelerator has whole experts of a mixture, in place of a slice of all; see experts.py."""
    expert_groups: int | None = None
    """Groups of accelerators that share the experts, each group with slices of its own ones; None = as many as
    accelerators. Read with expert_parallel."""
    dp: int = 1
    """Data-parallel attention: the tp accelerators form so many ranks, each with requests of its own. Attention is
    copied to each, and sliced among its tp / dp accelerators; experts are spread over all tp (SGLang's
    `--enable-dp-attention`; vLLM's `--data-parallel-size` with `--enable-expert-parallel`)."""
    expert_skew: float = 1.0
    """Tokens that the accelerator with the most popular experts gets, in even shares; 1 = every expert is as popular as
    any. The inverse of the "balancedness" that vLLM logs of its ranks."""

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise PricingError(f"tp and pp must be at least 1; got {self.tp} and {self.pp}")
        if self.dp < 1 or self.tp % self.dp:
            raise PricingError(f"dp {self.dp} cannot split tp {self.tp} into equal ranks")
        if self.expert_parallel and self.tp == 1:
            raise PricingError("expert_parallel spreads experts over accelerators: raise tp, or leave it out")
        if self.expert_skew != 1 and not self.expert_parallel:
            raise PricingError("expert_skew is read only with expert_parallel: set that, too, or leave expert_skew out")
        wanted = (("weights", self.weight_dtype, DTYPE_BYTES), ("KV cache", self.kv_dtype, NUMBER_BYTES))
        for what, dtype, known in wanted:
            if dtype not in known:
                raise PricingError(f"unknown dtype {dtype!r} of the {what}: choose from {', '.join(known)}")

    def check(self, model: PricedModel) -> None:
        """Raise PricingError unless the model can be cut into tp parts and pp stages, and adapters counted."""
        heads, kv_heads, slices = model.num_heads, model.num_kv_heads, self.attention_tp
        if not shares_heads(model, slices):
            raise PricingError(f"tp {slices} cannot share {heads} query heads and {kv_heads} KV heads evenly")
        if model.layers < self.pp:
            raise PricingError(f"pp {self.pp} leaves a stage without a layer: the model has {model.layers}, lower --pp")
        self.lora.check(model)
        if not self.expert_parallel:
            return
        ranks = self.expert_groups or self.tp
        if not model.num_experts or model.num_experts % ranks:
            experts = f"{model.num_experts} experts" if model.num_experts else "a model without experts"
            raise PricingError(f"expert_parallel cannot share {experts} among tp {ranks} evenly: leave it out")
        most = min(ranks, model.num_experts / model.experts_per_token)
        if not 1 <= self.expert_skew <= most:
            raise PricingError(f"expert_skew must be from 1 (even) to {most:g} here; got {self.expert_skew}")

    @property
    def accelerators(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        """Accelerators that share one rank's attention."""
        return self.tp // self.dp

    def expert_ranks(self, model: PricedModel) -> ExpertRanks | None:
        """What is uneven with expert parallelism; None without, or without experts (a draft model)."""
        if not (self.expert_parallel and model.num_experts):
            return None
        return ExpertRanks(model.num_experts, model.experts_per_token, self.expert_groups or self.tp, self.expert_skew)

    def copied_params(self, model: PricedModel) -> int:
        """Parameters of what all accelerators have together beyond one copy of each."""
        return model.copied_params * (self.tp - self.dp) + model.attention_params * (self.dp - 1)

    def repeated_params(self, model: PricedModel) -> int:
        """Parameters that a token meets again on another accelerator of its rank."""
        return model.copied_params * (self.attention_tp - 1)

    def kv_copies(self, model: PricedModel) -> float:
        """A KV head cannot be cut: with more accelerators than KV heads, several keep the same one. Latent vectors are
        one head."""
        return max(1.0, self.attention_tp / model.num_kv_heads)

    def weight_bytes(self, model: PricedModel) -> float:
        """Bytes of all weights and adapters, over all accelerators."""
        copies = self.copied_params(model) * model.attention_bytes(self.weight_dtype)
        return model.stored_bytes(self.weight_dtype) + copies + self.lora.stored_bytes(model)

    def kv_bytes_per_token(self, model: PricedModel) -> float:
        """Bytes on one accelerator for each token in the cache; with data-parallel attention, in its rank's."""
        return model.kv_bytes_per_token(self.kv_dtype) * self.kv_copies(model) / (self.attention_tp * self.pp)

    def fixed_kv_bytes(self, model: PricedModel) -> float:
        """Bytes on one accelerator for each request, however long."""
        return model.fixed_kv_bytes(self.kv_dtype) / (self.attention_tp * self.pp)


def bytes_for_kv(model: PricedModel, memory: float, placement: Placement) -> float:
    """What weights and working memory leave on one accelerator with `memory` bytes; negative if they do not fit."""
    usable = USABLE_MEMORY * memory
    return usable - placement.weight_bytes(model) / placement.accelerators - min(WORKING_BYTES, usable / 10)


def kv_blocks_that_fit(
    model: PricedModel, hardware: Hardware, placement: Placement, block_size: int, requests: int = 0
) -> int:
    """KV blocks that the memory left by the weights holds.

    Args:
        requests: that may run at once. What each takes however long it is, such as a recurrent state, is set aside.
    Raises:
        DoesNotFitError: there is no room for one, or not even for the weights.
    """
    usable = USABLE_MEMORY * hardware.memory
    weights = placement.weight_bytes(model) / placement.accelerators
    block = placement.kv_bytes_per_token(model) * block_size
    free = bytes_for_kv(model, hardware.memory, placement) - requests * placement.fixed_kv_bytes(model)
    if free >= block:
        return int(free // block)
    room = usable - min(WORKING_BYTES, usable / 10)
    enough = int(-(-(weights + block) * placement.accelerators // room))
    raise DoesNotFitError(
        f"{weights / 1e9:.1f} GB of weights per accelerator leave no room for a KV block of {block / 1e6:.1f} MB in "
        f"{usable / GIB:.1f} GiB ({USABLE_MEMORY:.0%} of {hardware.name}'s memory): use at least "
        f"{enough} accelerators ({how_to_cut(model, enough)}), narrower weights (--weight-dtype), or hardware with "
        "more memory"
    )


def how_to_cut(model: PricedModel, enough: int) -> str:
    """Options that spread a model over at least so many accelerators, and that its heads allow."""
    for tp in range(enough, model.num_heads + 1):
        if shares_heads(model, tp):
            return f"--tp {tp}" if tp == enough else f"--tp {tp}, as its heads can be shared, or --tp with --pp"
    return "--tp with --pp"


def shares_heads(model: PricedModel, slices: int) -> bool:
    """Whether so many accelerators can share the model's heads evenly. KV heads may be kept more than once."""
    return not model.num_heads % slices and not (model.num_kv_heads % slices and slices % model.num_kv_heads)


def check_fits(model: PricedModel, hardware: Hardware, placement: Placement, kv_bytes: float) -> None:
    """Raise DoesNotFitError if weights and a KV pool of so many bytes on each accelerator exceed its memory."""
    weights = placement.weight_bytes(model) / placement.accelerators
    if weights + kv_bytes > hardware.memory:
        raise DoesNotFitError(
            f"{weights / 1e9:.1f} GB of weights and {kv_bytes / 1e9:.1f} GB of KV cache per accelerator do not fit the "
            f"{hardware.memory / 1e9:.1f} GB of {hardware.name}: lower the KV blocks, or raise --tp"
        )

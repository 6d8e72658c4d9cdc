"""A model as decoding sees it: bytes to read and operations to do in a step, by its shape alone."""

from dataclasses import dataclass, replace

from course.lab.lab import Lab
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement, kv_blocks_that_fit
from course.simulator.cost.sizes import ModelCost
from course.simulator.deployment import BLOCK_SIZE
from course.simulator.errors import DoesNotFitError
from minillm.bench.target import Target
from minillm.core.brief import brief
from minillm.kernels.quantization import dtype_name
from minillm.model.config import ModelConfig
from minillm.model.loader import choose_dtype


@dataclass(frozen=True)
class ModelShape:
    """One model, in the dtypes it is kept in, and what it stands on."""

    name: str
    cost: ModelCost
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    gpus: int = 0
    """H100s that hold it; 0 = it is this lab's own model, wherever that runs."""

    __repr__ = brief

    @classmethod
    def of_lab(cls, lab: Lab) -> "ModelShape":
        """The model of a lab, in its dtype. Reads its config.json; loads nothing."""
        config = lab.config()
        target = Target(model=config.model, dtype=config.dtype, device=config.device)
        shape: ModelConfig = target.model_config()
        dtype = dtype_name(choose_dtype(config.dtype, shape, target.torch_device()))
        return cls(config.model.rpartition("/")[2], ModelCost.of(shape), dtype, dtype)

    @property
    def kind(self) -> str:
        """MHA: each query head has its own key and value; GQA: a group of heads shares one; MQA: all share one."""
        kv = self.cost.num_kv_heads
        return "MHA" if kv == self.query_heads else "MQA" if kv == 1 else "GQA"

    @property
    def query_heads(self) -> int:
        return self.cost.query_size // self.cost.head_dim

    @property
    def weight_bytes(self) -> float:
        """That every step reads."""
        return self.cost.read_bytes(self.weight_dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """That a step reads for each token of context."""
        return self.cost.kv_bytes_per_token(self.kv_dtype)

    @property
    def crossover_tokens(self) -> float:
        """Tokens of context, of all requests together, whose keys and values are as many bytes as the weights."""
        return self.weight_bytes / self.kv_bytes_per_token

    def kv_bytes(self, batch: float, context: float) -> float:
        return batch * context * self.kv_bytes_per_token

    def bytes(self, batch: float, context: float) -> float:
        """That a decode step reads: the weights once, and the keys and values of all contexts."""
        return self.weight_bytes + self.kv_bytes(batch, context)

    def flops_per_token(self, context: float) -> float:
        """Operations for one new token: two for each weight, and attention to every token of its context."""
        attention = 4 * self.cost.layers * self.cost.query_size * context
        return 2 * (self.cost.layer_params + self.cost.head_params) + attention

    def flops(self, batch: float, context: float) -> float:
        return batch * self.flops_per_token(context)

    def intensity(self, batch: float, context: float) -> float:
        """Operations for each byte read."""
        return self.flops(batch, context) / self.bytes(batch, context)

    @property
    def attention_intensity(self) -> float:
        """Operations of attention for each byte of KV: the same in every batch and context, since requests share no
        KV."""
        return (self.flops_per_token(1) - self.flops_per_token(0)) / self.kv_bytes_per_token

    def room_tokens(self) -> float | None:
        """Tokens whose KV fits beside the weights on its GPUs; None = not on GPUs of ours.

        Raises:
            DoesNotFitError: not even the weights do.
        """
        if not self.gpus:
            return None
        placement = Placement(self.gpus, self.weight_dtype, self.kv_dtype)
        return BLOCK_SIZE * kv_blocks_that_fit(self.cost, find_hardware("h100-sxm"), placement, BLOCK_SIZE)

    def fits(self, batch: float, context: float) -> bool:
        try:
            room = self.room_tokens()
        except DoesNotFitError:
            return False
        return room is None or batch * context <= room

    def stored_as(self, weight_dtype: str | None = None, kv_dtype: str | None = None) -> "ModelShape":
        """The same model, kept in other dtypes; None = as it is."""
        return replace(self, weight_dtype=weight_dtype or self.weight_dtype, kv_dtype=kv_dtype or self.kv_dtype)


LLAMA_13B = ModelShape("Llama-2-13B", find_model("llama-2-13b"), gpus=1)
LLAMA_70B = ModelShape("Llama-3-70B", find_model("llama-3-70b"), gpus=4)


def three(lab: Lab) -> dict[str, ModelShape]:
    """The lab's model, one with a key and a value for each head, and a large one whose heads share them. Two, where the
    lab's is one of these."""
    others = {shape.name: shape for shape in (LLAMA_13B, LLAMA_70B)}
    own = ModelShape.of_lab(lab)
    is_known = own.name.lower() in map(str.lower, others)
    return others if is_known else {own.name: own, **others}

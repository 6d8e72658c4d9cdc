"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): several ranks, each with a slice of every matrix.

    x -> qkv: some of the heads       -> attention, head by head -> o: their columns    -> all-reduce
    x -> gate, up: some of the units  -> SwiGLU, unit by unit    -> down: their columns -> all-reduce

A matrix cut by its outputs (column-parallel; the paper multiplies from the other side) needs nothing from other ranks:
it is a smaller matrix. The one after it is cut by its inputs (row-parallel), in the same places, so that each rank has
what it multiplies. It gets one summand of the whole product, and an all-reduce adds them up: two of [T, hidden] a
layer. Norms and the residual stream are the same on all ranks.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minillm.core.errors import ConfigError
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder
from minillm.model.errors import UnsupportedArchitectureError

DIVISIBLE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures all of whose matrices are in CUT."""
COLUMN_PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
ROW_PARALLEL = ("o_proj", "down_proj")
CUT = dict.fromkeys(COLUMN_PARALLEL, 0) | dict.fromkeys(ROW_PARALLEL, 1)
"""Which dimension of W [out, in] is shared out, by its name in checkpoints. The vocabulary is, like outputs."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which of the processes that share a model this one is, and how it reaches the others."""

    rank: int = 0
    size: int = 1
    group: Any = None
    """The process group. Not torch's default one: a process has only one of those, and engines come and go."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, in its place."""
        dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x [R, n] side by side: [R, size * n]."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts, dim=-1)

    def smallest(self, number: int, device: torch.device) -> int:
        """The smallest of all ranks' numbers."""
        numbers = torch.tensor([number], device=device)
        if self.size > 1:
            dist.all_reduce(numbers, dist.ReduceOp.MIN, self.group)
        return int(numbers)

    def part_of(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's slice of a checkpoint's tensor. Of norms all ranks have the whole."""
        _, layer, kind = ("." + name).rsplit(".", 2)
        if layer in ROW_PARALLEL and kind == "bias":  # the sum is to have it once
            return tensor if self.rank == 0 else torch.zeros_like(tensor)
        return tensor.chunk(self.size, CUT[layer])[self.rank] if layer in CUT else tensor


ALONE = Ranks()


def split(config: ModelConfig, size: int) -> ModelConfig:
    """What one of `size` ranks computes: its share of the heads, of the MLP's units, and of the vocabulary.

    Raises:
        ConfigError: they cannot be shared evenly.
        UnsupportedArchitectureError: it has matrices that nothing here cuts.
    """
    if config.architecture not in DIVISIBLE:
        raise UnsupportedArchitectureError(f"tensor_parallel_size: {config.architecture} cannot be divided yet, use 1")
    shares: dict[str, Any] = {}
    for name in ("num_heads", "num_kv_heads", "intermediate_size", "vocab_size"):
        shares[name], rest = divmod(getattr(config, name), size)
        if rest:
            raise ConfigError(f"tensor_parallel_size={size} does not divide {name} ({getattr(config, name)})")
    return replace(config, **shares)


class RowParallelLinear(nn.Module):
    """x W^T + b where W is cut by its inputs: the sum of all ranks' products. Rank 0 alone has b.

    It is nothing that our C++ reads: that computes all layers in one call, and has no all-reduce.
    """

    def __init__(self, part: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.part, self.ranks = part, ranks

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.all_reduce(self.part(x))


class VocabularyParallelHead(nn.Module):
    """Logits [R, V]: each rank's part of the vocabulary, put together."""

    def __init__(self, part: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.part, self.ranks = part, ranks

    def forward(self, x: Tensor) -> Tensor:
        return self.ranks.all_gather(self.part(x))


class ParallelDecoder(Decoder):
    """One rank's part of a decoder. Every rank gets the same token ids, and all of the logits.

    Args:
        config: the whole model's.
    """

    def __init__(self, ranks: Ranks, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        part = split(config, ranks.size)
        super().__init__(part, dtype, device)
        self.first_row, self.num_rows, self.ranks = ranks.rank * part.vocab_size, part.vocab_size, ranks
        self.config = replace(part, vocab_size=config.vocab_size)  # as seen from outside

    def connect(self) -> None:
        """Once the weights are loaded and packed: put the collectives in."""
        self.lm_head = VocabularyParallelHead(self.lm_head, self.ranks)  # type: ignore[assignment]
        for layer in self.layers:
            for block, name in ((layer.attention, "o_proj"), (layer.mlp, "down_proj")):
                setattr(block, name, RowParallelLinear(getattr(block, name), self.ranks))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Each row from the rank that has it; the others add zeros."""
        ids = token_ids - self.first_row
        is_here = (ids >= 0) & (ids < self.num_rows)
        return self.ranks.all_reduce(super().embed(ids.where(is_here, 0)) * is_here[:, None])

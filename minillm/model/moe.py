"""Mixture of experts: many MLPs in a layer, of which each token goes through a few (Shazeer et al. 2017).

    x -> router -> for each token, k of E experts and a share of each
      -> rows sorted by expert -> each expert multiplies its own -> sorted back, and summed by share

The model has the capacity of E MLPs for the arithmetic of k. What that does to memory, and to the bytes that a step
reads, is in arithmetic.py.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels.ops import Ops, StackedExperts
from minillm.model.config import ModelConfig


class ExpertRouter(nn.Module):
    """Which experts a token goes to. Small differences decide, so it's not quantized."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        weight = torch.empty(config.num_experts, config.hidden_size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, False)
        self.k, self.normalize = config.num_experts_per_tok, config.norm_topk_prob

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, hidden] to each token's experts [T, k], int64, and their shares [T, k]."""
        probabilities = F.linear(x, self.weight).softmax(dim=-1, dtype=torch.float32)
        shares, experts = probabilities.topk(self.k)
        if self.normalize:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return experts, shares.to(x.dtype)


class MoE(nn.Module):
    """The sum of a token's experts, each weighted by its share.

    Args:
        experts: E MLPs. They are plain ones, so they are packed and quantized like those of a dense model.
    """

    def __init__(self, router: ExpertRouter, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.stacked: StackedExperts | None = None
        """All experts' weights side by side, where one product takes them."""

    def stack(self) -> None:
        """Lay the experts' weights side by side; they become views of that."""
        gate_up, down = (side_by_side(name, self.experts) for name in ("gate_up_proj", "down_proj"))
        router = self.router
        self.stacked = StackedExperts(router.weight, gate_up, down, router.k, router.normalize)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        if self.stacked is not None and (mixed := ops.mix_experts(x, self.stacked)) is not None:
            return mixed
        experts, shares = self.router(x)
        # T * k pairs of a token and an expert, sorted by expert, and where each expert's pairs end.
        chosen, order = experts.flatten().sort(stable=True)
        ids = torch.arange(len(self.experts), device=x.device)
        ends = torch.searchsorted(chosen, ids, right=True, out_int32=True)
        multiply = self.one_by_one if self.stacked is None else self.all_at_once
        return ops.add_shares(multiply(x[order // self.router.k], ends, ops), order, shares)

    def one_by_one(self, rows: Tensor, ends: Tensor, ops: Ops) -> Tensor:
        """[T * k, hidden]: one product of each matrix of each expert that has rows; the others are not read.

        Args:
            rows: [T * k, hidden], sorted by expert.
            ends: [E] int32, the first row after those of each expert.
        """
        # Here, once a layer, a GPU's host waits for all that it has launched: how many rows a product has is the host's
        # to say. So launches don't run ahead, and a CUDA graph would keep the numbers of the step that it recorded.
        bounds = pairwise([0, *ends.tolist()])
        return torch.cat([mlp(rows[start:end], ops) for mlp, (start, end) in zip(self.experts, bounds) if start < end])

    def all_at_once(self, rows: Tensor, ends: Tensor, ops: Ops) -> Tensor:
        """What `one_by_one` gives, in one grouped product for all gates and ups, and one for all downs (MegaBlocks,
        Gale et al. 2023). `ends` is read on the device: the host launches on, and a CUDA graph holds for any step."""
        assert self.stacked is not None
        gate_up, down = self.stacked.gate_up.mT, self.stacked.down.mT
        inner = ops.silu_mul(F.grouped_mm(rows, gate_up, offs=ends))
        return F.grouped_mm(inner, down, offs=ends)


def side_by_side(name: str, experts: Iterable[nn.Module]) -> Tensor:
    """[E, out, in]: the weights of all experts' matrices of that name."""
    linears = [getattr(expert, name) for expert in experts]
    stacked = torch.stack([linear.weight for linear in linears])
    for linear, weight in zip(linears, stacked):
        linear.weight.data = weight
    return stacked


def groups_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's grouped product reads its groups' ends on the device: in bfloat16 on Hopper and datacenter
    Blackwell. Elsewhere it is a loop on the host."""
    return device.type == "cuda" and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10)

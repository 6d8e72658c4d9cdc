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

from minillm.kernels.ops import Ops
from minillm.model.config import ModelConfig


class Router(nn.Module):
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

    def __init__(self, router: Router, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        experts, shares = self.router(x)
        # T * k pairs of a token and an expert, sorted by expert, and where each expert's pairs end.
        chosen, order = experts.flatten().sort(stable=True)
        ids = torch.arange(len(self.experts), device=x.device)
        ends = torch.searchsorted(chosen, ids, right=True)
        y = self.one_by_one(x[order // self.router.k], ends, ops)
        y = torch.empty_like(y).index_copy_(0, order, y)
        return (y.view(*shares.shape, -1) * shares[:, :, None]).sum(dim=1)

    def one_by_one(self, rows: Tensor, ends: Tensor, ops: Ops) -> Tensor:
        """[T * k, hidden]: one product of each matrix of each expert that has rows; the others are not read.

        Args:
            rows: [T * k, hidden], sorted by expert.
            ends: [E] the first row after those of each expert.
        """
        # Here, once a layer, a GPU's host waits for all that it has launched: how many rows a product has is the host's
        # to say. So launches don't run ahead, and a CUDA graph would keep the numbers of the step that it recorded.
        bounds = pairwise([0, *ends.tolist()])
        return torch.cat([mlp(rows[start:end], ops) for mlp, (start, end) in zip(self.experts, bounds) if start < end])

"""Drafts of which some pass and some don't: the model drafts for itself, and slips on purpose."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from minillm import EngineConfig
from minillm.policies.config import SpeculativeConfig
from minillm.runner.rows import DraftPosition
from minillm.runner.sampler import probabilities
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import Proposer
from minillm.speculation.draft_model import DraftModelProposer, draw_from


class SlippingProposer(DraftModelProposer):
    """Slips three times in ten, and then writes what the model finds least likely."""

    def draw(self, logits: Tensor, rows: Sequence[DraftPosition]) -> tuple[list[int], Tensor]:
        probs = probabilities(logits.float(), rows)
        slips = torch.zeros_like(probs).scatter_(1, probs.argmin(dim=-1, keepdim=True), 1.0)
        probs = probs.lerp(slips, 0.3)
        return draw_from(probs, rows), probs


class Slipping(SpeculativeConfig):
    """Speculation with such drafts."""

    method: Literal["slipping"] = "slipping"

    def make_proposer(self, runner: TorchRunner, config: EngineConfig) -> Proposer:
        return SlippingProposer(runner, config)

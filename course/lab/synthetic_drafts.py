"""Drafts with a chosen acceptance rate, to study what follows from it.

The model itself drafts, so it knows what it would write; it then errs on purpose. With p the distribution of the next
token and x the token it finds least likely, drafts are drawn from q = α p + (1 - α) [x], of which the share
Σ min(p, q) = α + (1 - α) p(x) passes: α, but for the least of probabilities. Checking such a draft is as lossless as
checking any other.

Such a draft costs as much as it saves. That is why drafting and checking are timed apart: the time of a draft that
costs less is a matter of arithmetic.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from minillm.policies.config import EngineConfig, SpeculativeConfig
from minillm.runner.rows import DraftPosition
from minillm.runner.sampler import probabilities
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.draft_model import DraftModelProposer, draw_from


class SyntheticProposer(DraftModelProposer):
    """Each draft token passes with the probability `acceptance_rate`, if those before it have.

    Args:
        runner: runs the very model whose output is drafted.
        seed: decides which drafts are wrong.
    """

    def __init__(self, runner: TorchRunner, config: EngineConfig, acceptance_rate: float, seed: int) -> None:
        super().__init__(runner, config)
        self.acceptance_rate = acceptance_rate
        self.purpose = f"draft {seed}"

    def draw(self, logits: Tensor, rows: Sequence[DraftPosition]) -> tuple[list[int], Tensor | None]:
        probs = probabilities(logits.float(), rows)
        wrong = probs.argmin(dim=-1, keepdim=True)
        probs.mul_(self.acceptance_rate).scatter_add_(1, wrong, probs.new_full(wrong.shape, 1 - self.acceptance_rate))
        return draw_from(probs, rows, self.purpose), probs


class SyntheticDrafts(SpeculativeConfig):
    """Speculation with such drafts, as an engine's configuration."""

    method: Literal["synthetic"] = "synthetic"  # type: ignore[assignment]  # no other method of the engine's
    acceptance_rate: float = Field(0.7, ge=0, le=1)
    seed: int = Field(0, description="another seed errs in other places")

    def make_proposer(self, runner: TorchRunner, config: EngineConfig) -> SyntheticProposer:
        """See minillm.speculation.make.BringsProposer."""
        return SyntheticProposer(runner, config, self.acceptance_rate, self.seed)


def drafting(fields: dict[str, Any]) -> SpeculativeConfig:
    """A configuration of speculation, also of method "synthetic"."""
    return (SyntheticDrafts if fields.get("method") == "synthetic" else SpeculativeConfig)(**fields)

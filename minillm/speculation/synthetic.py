"""Drafts with a chosen acceptance rate, to study what follows from it.

The model itself drafts, so it knows what it would write; it then errs on purpose. With p the distribution of the next
token and x the token it finds least likely, drafts are drawn from q = α p + (1 - α) [x], of which the share
Σ min(p, q) = α + (1 - α) p(x) passes: α, but for the least of probabilities. Checking such a draft is as lossless as
checking any other.

Such a draft costs as much as it saves. That is why drafting and checking are timed apart: the time of a draft that
costs less is a matter of arithmetic.
"""

from collections.abc import Sequence

from torch import Tensor

from minillm.policies.config import EngineConfig
from minillm.runner.rows import DraftPosition
from minillm.runner.sampler import probabilities
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.draft_model import DraftModelProposer, draw_from


class SyntheticProposer(DraftModelProposer):
    """Each draft token passes with the probability `acceptance_rate`, if those before it have.

    Args:
        runner: of the very model whose output is drafted.
        seed: another one errs in other places.
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

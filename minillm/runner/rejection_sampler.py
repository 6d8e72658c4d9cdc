"""Checks drafts, so that the output is what it would have been without them.

A step computes the logits after a request's last known token and after each token of its draft. Every row then
yields an *outcome*, the token that belongs there; a draft token is accepted if the outcome of its row is that token.
The request keeps the outcomes up to the first that differs from its draft, or all of them.

- A draft that was chosen, not drawn (a lookup, a greedy draft model): the outcome is sampled as always. The token
  is accepted with the probability p(x), and otherwise the outcome is one of the others, in proportion to p. The random
  number of a position is what it would have been without speculation, so the same seed gives the same text.
- A draft token x drawn from a distribution q: it's accepted with the probability min(1, p(x) / q(x)), otherwise the
  outcome is drawn from max(p - q, 0), normalized (Leviathan et al. 2023, "Fast Inference from Transformers via
  Speculative Decoding", theorem in appendix A.1). The outcome is distributed as p, and x accepted more often than if
  x had been chosen; which token a seed gives depends on what was drafted. The first case is this one with q(x) = 1.

Greedy requests are of the first kind whatever drafted for them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.runner.rows import DraftPosition, Row
from minillm.runner.sampler import Sampler, on_device, pick, probabilities, uniforms


class RejectionSampler(Sampler):
    """A sampler whose rows may have a draft token to check."""

    def choose(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        drafts = {i: row.next_draft for i, row in enumerate(rows) if isinstance(row, DraftPosition)}
        drawn = {i: draft for i, draft in drafts.items() if draft is not None}
        if not drawn:
            return super().choose(logits, rows)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        if others := [i for i in range(len(rows)) if i not in drawn]:
            at = on_device(others, logits.device)
            token_ids[at] = super().choose(logits[at], [rows[i] for i in others])
        at, checked = on_device(list(drawn), logits.device), [rows[i] for i in drawn]
        token_ids[at] = check_drawn(
            probabilities(logits[at], checked),
            torch.stack([probs for _, probs in drawn.values()]),
            on_device([token for token, _ in drawn.values()], logits.device),
            uniforms(checked, logits.device, "accept"),
            uniforms(checked, logits.device, "again"),
        )
        return token_ids


def check_drawn(target: Tensor, proposal: Tensor, drafts: Tensor, accept: Tensor, again: Tensor) -> Tensor:
    """Outcomes [N] of N draft tokens, each drawn from its row of `proposal`: distributed as `target`.

    Args:
        target, proposal: [N, V] probabilities, float32.
        drafts: [N] token ids.
        accept, again: [N] float64 in [0, 1): they decide whether a draft token is accepted, and what is drawn instead.
    """
    p, q = (probs.gather(1, drafts[:, None])[:, 0].double() for probs in (target, proposal))
    residual = (target - proposal).clamp_(min=0)
    # Where nothing is left, the two are equal but for rounding.
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, target)
    cumulative = residual.cumsum(dim=-1)
    return torch.where(accept * q < p, drafts, pick(cumulative, cumulative[:, -1], again))


def num_kept(outcomes: Sequence[int], drafts: Sequence[int]) -> int:
    """How many of a request's outcomes it keeps; the last of them is not its draft's.

    Args:
        outcomes: one more than drafts.
    """
    passed = 0
    while passed < len(drafts) and outcomes[passed] == drafts[passed]:
        passed += 1
    return passed + 1

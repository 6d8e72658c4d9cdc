"""How far what a head foretells is from what the model says, for training and for judging."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.speculation.head import DraftHead
from minillm.training.unrolled import ConversationBatch, shifted, unroll

STATE_WEIGHT = 0.5
"""Of the distance between hidden states, beside the cross-entropy."""
PASS_WEIGHT = 0.8
"""Of each pass, relative to the one before: a token counts only if those before it were right."""


def training_loss(head: DraftHead, batch: ConversationBatch, num_passes: int) -> Tensor:
    """Cross-entropy to the model's own distribution over the head's tokens, and smooth L1 of the hidden states; the
    mean over rows, weighted over passes."""
    length = batch.hidden.shape[1]
    with torch.no_grad():
        wanted = head.output(batch.hidden).softmax(dim=-1)
    total = batch.hidden.new_zeros(())
    for j, (hidden, there) in enumerate(unroll(head, batch, num_passes), start=1):
        states = shifted(batch.hidden, j, length)[there]
        hidden = hidden[there]
        # [R, N] log-probabilities against probabilities: cross_entropy takes these as targets, too.
        entropy = F.cross_entropy(head.output(hidden), shifted(wanted, j, length)[there])
        total = total + PASS_WEIGHT ** (j - 1) * (entropy + STATE_WEIGHT * F.smooth_l1_loss(hidden, states))
    return total


@dataclass(slots=True)
class Agreement:
    """How often drafts agree with greedy answers, by position in the draft."""

    passed: list[int]
    """Drafts whose first j + 1 tokens are all right"""
    rows: int = 0

    @property
    def by_position(self) -> list[float]:
        """The share of tokens that are right where all before them were."""
        return [now / before if before else 0.0 for now, before in zip(self.passed, [self.rows, *self.passed])]

    @property
    def emitted_per_verify(self) -> list[float]:
        """Tokens a step yields with drafts of 1, 2, ... tokens, the model's own included."""
        return [1 + sum(self.passed[: k + 1]) / max(self.rows, 1) for k in range(len(self.passed))]


@torch.no_grad()
def count_agreement(head: DraftHead, batch: ConversationBatch, answer_starts: Tensor, agreement: Agreement) -> None:
    """Count for the rows from which answers are drafted, which are taken to be greedy.

    Args:
        answer_starts: [B] the first token of each answer, counted from the batch's first.
    """
    num_passes, length = len(agreement.passed), batch.hidden.shape[1]
    rows = torch.arange(length, device=batch.hidden.device)
    # The first token that the model yields by itself; whole drafts only.
    counted = (rows + 1 >= answer_starts[:, None]) & (rows + num_passes < batch.num_states[:, None])
    right = counted
    agreement.rows += int(counted.sum())
    for j, (hidden, _) in enumerate(unroll(head, batch, num_passes), start=1):
        guesses = head.token_ids[head.output(hidden).argmax(dim=-1)]
        right = right & (guesses == shifted(batch.token_ids, j + 1, length))
        agreement.passed[j - 1] += int(right.sum())

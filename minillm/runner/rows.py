"""Rows of logits: whose next token each of them is about."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from minillm.core.params import SamplingParams
from minillm.core.request import Request


@dataclass(frozen=True, slots=True)
class DraftPosition:
    """A request as it would be if the first `num_drafts` tokens of its draft were its own: what the sampler reads
    to choose the token after them."""

    request: Request
    num_drafts: int
    matcher: ClassVar[None] = None
    """None: with a grammar nothing is drafted."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self.request.stop_token_ids

    @property
    def seed(self) -> int:
        return self.request.seed

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.prompt_token_ids

    @property
    def output_token_ids(self) -> list[int]:
        return self.request.output_token_ids + self.request.draft.token_ids[: self.num_drafts]

    @property
    def draw_position(self) -> int:
        return self.request.draw_position + self.num_drafts

    @property
    def next_draft(self) -> tuple[int, Tensor] | None:
        """The draft token at this position, and the distribution [V] it was drawn from; None if it was not drawn."""
        draft = self.request.draft
        if draft.probs is None or self.num_drafts >= len(draft):
            return None
        return draft.token_ids[self.num_drafts], draft.probs[self.num_drafts]


Row = Request | DraftPosition


def takes_likeliest(row: Row) -> bool:
    """Whether its next token is the one with the largest logit: a greedy one's, once it has its min_tokens."""
    return row.params.takes_likeliest and row.draw_position >= row.params.min_tokens

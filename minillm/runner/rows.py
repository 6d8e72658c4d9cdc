"""Rows of logits: whose next token each of them is about."""

from collections.abc import Sequence
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


def places_sampled(rows: Sequence[Row]) -> list[int]:
    """Those of the rows whose next token isn't just the one with the largest logit. A greedy request's is, once it has
    its min_tokens. No call per row: a decode step's host time is Python's calls."""
    return [
        i
        for i, row in enumerate(rows)
        if not (params := row.params).takes_likeliest or (params.min_tokens and row.draw_position < params.min_tokens)
    ]

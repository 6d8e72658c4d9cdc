"""The contract between the scheduler and a runner: what to compute in one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minillm.kv_cache.swap import BlockCopy
from minillm.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a step: compute its tokens [start, start + num_tokens)."""

    request: Request
    start: int
    """Tokens of it already in the KV cache."""
    num_tokens: int
    """New tokens to compute in this step, >= 1."""
    block_ids: Sequence[int]
    """Its block table: position p lives in block block_ids[p // block_size]; see BlockTable."""

    samples: bool
    """True when the step catches up with everything it has: its last row yields the next token."""
    num_drafts: int = 0
    """The last so many of the new tokens are its draft's: each row before one of them checks it. Such a request has
    one token of its own in the step."""

    @property
    def end(self) -> int:
        """Context length after the step, tokens."""
        return self.start + self.num_tokens

    def without_drafts(self) -> "ScheduledRequest":
        return replace(self, num_tokens=self.num_tokens - self.num_drafts, num_drafts=0)

    @property
    def is_prefill(self) -> bool:
        """It computes prompt tokens, or computes again after a preemption."""
        return self.num_tokens - self.num_drafts > 1 or self.start < self.request.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step's work. A runner does it in this order: swap_out, swap_in, forward, sample."""

    step_id: int
    requests: tuple[ScheduledRequest, ...]
    swap_out: tuple[BlockCopy, ...] = ()
    """device block -> host block"""
    swap_in: tuple[BlockCopy, ...] = ()
    """host block -> device block"""
    preempted: tuple[Request, ...] = ()
    timed_out: tuple[Request, ...] = ()
    """Waited longer than queue_timeout_s; already finished, reported with this step."""

    @property
    def num_tokens(self) -> int:
        return sum(scheduled.num_tokens for scheduled in self.requests)

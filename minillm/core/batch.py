"""The contract between the scheduler and a runner: what to compute in one step."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from minillm.core.request import Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one KV block between device and host: `source` and `target` are block ids of their pools."""

    source: int
    target: int


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


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step produced. Times in seconds of the engine's clock."""

    tokens: dict[str, list[int]]
    """New output tokens by request id, for every scheduled request whose `samples` is True; but see `errors`.
    One token, and one more for each token of its draft that passed."""
    forward_end: float
    """When the forward pass was done (on a GPU: seen to be done)."""
    stages: dict[str, float]
    """Seconds spent in `build`, `forward` and `sample`."""
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """One per new token, for requests that asked for them."""
    errors: dict[str, str] = field(default_factory=dict)
    """What went wrong, by request id, for requests that could not be sampled. Only they fail."""


class LaunchedStep(Protocol):
    """A step that has begun. On a GPU it is still being computed."""

    def wait(self) -> StepOutput:
        """Wait until it is done. Called once. Raises whatever went wrong on the device."""
        ...


class Runner(Protocol):
    """Executes batches over a KV cache of `num_kv_blocks` blocks (and `num_host_blocks` swap blocks)."""

    num_kv_blocks: int
    num_host_blocks: int
    block_size: int
    """Tokens per block."""
    runs_beside_python: bool
    """True when `launch` returns before the step is done, so that Python can prepare the next one meanwhile."""

    def launch(self, batch: ScheduledBatch) -> LaunchedStep:
        """Begin one step, its block copies first. The batch has at least one request.

        Steps are computed in the order they are launched. A request may have tokens in the batch that
        the step launched just before will yield (`Request.num_pending_tokens`): the runner knows them.
        """
        ...

    def swap(self, batch: ScheduledBatch) -> None:
        """Only the batch's block copies: swap_out, then swap_in. `launch` begins with it."""
        ...

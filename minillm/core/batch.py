"""The contract between the scheduler and a runner: what one step computes, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minillm.core.brief import brief
from minillm.core.request import Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one KV block between the device's pool and a preemption policy's storage: ids of source and target."""

    source: int
    target: int


class ScheduledRequest(NamedTuple):
    """One request's part of a step: compute its tokens [start, start + num_tokens). (A tuple, because a step makes
    hundreds of them, and a runner reads them by columns.)"""

    request: Request
    start: int
    """The request's num_computed_tokens before this step."""
    num_tokens: int
    """New tokens to compute in this step, >= 1."""
    block_ids: Sequence[int]
    """The request's block table, which goes on growing: position p lives in block block_ids[p // block_size]. In later
    steps the same list has the same blocks before their `start`; where others take their place, it is another list."""

    samples: bool
    """True when the step catches up with everything it has: its last row yields the next token."""
    num_drafts: int = 0
    """The last so many of the new tokens are its draft's. With drafts a, b after the known token t, the step computes
    t a b: t's row says what belongs at a's place, a's row at b's, and b's row yields one token more."""

    @property
    def end(self) -> int:
        """Context length after the step, tokens."""
        return self.start + self.num_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether it computes prompt tokens, or again what a preemption took: what the word means in all records.
        (`Scheduler.schedule` goes by how far behind a request is: the last token of a chunked prompt is no more work
        than a decode, and goes with them.)"""
        return self.num_tokens - self.num_drafts > 1 or self.start < self.request.num_prompt_tokens


class Step:
    """A batch while it is put together. What is scheduled counts as computed from here on: this is the only place where
    `num_computed_tokens` and `num_pending_tokens` advance (admission says where a request starts, preemption sets it
    back), and `Scheduler.commit` takes rejected drafts back.

    Args:
        budget: most tokens of the step.
        num_running: requests that run as it begins: each may want a token, which no draft may take.
    """

    def __init__(self, budget: int, num_running: int) -> None:
        self.budget = budget
        """Tokens that may still be scheduled; below 0 where a prompt that isn't cut into chunks took more than there
        were."""
        self.draft_budget = budget - num_running
        """Tokens of the whole step that drafts may take, so that each running request can still get one."""
        self.scheduled: dict[Request, ScheduledRequest] = {}
        self.preempted: list[Request] = []
        self.saves: list[BlockCopy] = []
        self.loads: list[BlockCopy] = []

    @property
    def catches_up(self) -> bool:
        """Whether any of its requests was more than one token behind."""
        return any(part.num_tokens - part.num_drafts > 1 for part in self.scheduled.values())

    def add(self, request: Request, num_tokens: int, block_ids: Sequence[int], samples: bool) -> None:
        """Schedule the next tokens of a request."""
        part = ScheduledRequest(request, request.num_computed_tokens, num_tokens, block_ids, samples)
        self.scheduled[request] = part
        self.budget -= num_tokens
        request.num_computed_tokens += num_tokens
        request.num_pending_tokens += samples

    def remove(self, request: Request) -> ScheduledRequest | None:
        """Undo `add` (and `add_draft`), if the request is in this step. Returns what was scheduled."""
        part = self.scheduled.pop(request, None)
        if part is not None:
            self.budget += part.num_tokens
            request.num_computed_tokens = part.start
            request.num_pending_tokens -= part.samples
        return part

    def add_draft(self, request: Request, num_drafts: int) -> None:
        """Check so many tokens of its draft after its own."""
        part = self.scheduled[request]
        self.scheduled[request] = part._replace(num_tokens=part.num_tokens + num_drafts, num_drafts=num_drafts)
        self.budget -= num_drafts
        request.num_computed_tokens += num_drafts

    def drop_draft(self, request: Request) -> None:
        """Undo `add_draft`."""
        part = self.scheduled[request]
        self.scheduled[request] = part._replace(num_tokens=part.num_tokens - part.num_drafts, num_drafts=0)
        self.budget += part.num_drafts
        request.num_computed_tokens -= part.num_drafts


class ScheduledBatch(NamedTuple):
    """One step's work. A runner does it in this order: saves, loads, forward, sample."""

    step_id: int
    requests: tuple[ScheduledRequest, ...]
    saves: tuple[BlockCopy, ...] = ()
    """device block -> block of the preemption policy's storage"""
    loads: tuple[BlockCopy, ...] = ()
    """block of that storage -> device block"""
    preempted: tuple[Request, ...] = ()
    timed_out: tuple[Request, ...] = ()
    """Waited too long; already finished, reported with this step."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.requests)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step produced. Times in seconds of the engine's clock."""

    tokens: dict[str, list[int]]
    """New output tokens by request id, for every scheduled request whose `samples` is True; but see `errors`.
    One token, and one more for each token of its draft that was accepted."""
    forward_end: float
    """When the forward pass was done (on a GPU: seen to be done)."""
    stages: dict[str, float]
    """Seconds spent in `build`, `forward` and `sample`."""
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """One per new token, for requests that asked for them."""
    errors: dict[str, str] = field(default_factory=dict)
    """What went wrong, by request id, for requests that could not be sampled. Only they fail."""

    __repr__ = brief


class LaunchedStep(Protocol):
    """A step that has begun. On a GPU it is still being computed."""

    def wait(self) -> StepOutput:
        """Wait until it is done. Called once. Raises whatever went wrong on the device."""
        ...


class Runner(Protocol):
    """Executes batches over a KV cache of `num_kv_blocks` blocks."""

    num_kv_blocks: int
    num_host_blocks: int
    """Blocks of storage for what a preemption policy saves; 0 if it saves nothing."""
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

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """Make only the batch's block copies, saves before loads. `launch` begins with it."""
        ...

"""The Runner protocol. The engine does not know whether a real model or a price list is behind it."""

from dataclasses import dataclass, field
from typing import Protocol

from minillm.request import TokenLogprob
from minillm.scheduling.batch import ScheduledBatch


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

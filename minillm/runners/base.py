"""The Runner protocol. The engine does not know whether a real model or a price list is behind it."""

from dataclasses import dataclass, field
from typing import Protocol

from minillm.request import TokenLogprob
from minillm.scheduling.batch import ScheduledBatch


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step produced. Times in seconds of the engine's clock."""

    tokens: dict[str, list[int]]
    """New output tokens by request id, for every scheduled request whose `samples` is True."""
    forward_end: float
    """When the forward pass was done (on a GPU: synchronised)."""
    stages: dict[str, float]
    """Seconds spent in `build`, `forward` and `sample`."""
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """One per new token, for requests that asked for them."""
    errors: dict[str, str] = field(default_factory=dict)
    """What went wrong, by request id, for requests that could not be sampled. Only they fail."""


class Runner(Protocol):
    """Executes batches over a KV cache of `num_kv_blocks` blocks (and `num_host_blocks` swap blocks)."""

    num_kv_blocks: int
    num_host_blocks: int

    def execute(self, batch: ScheduledBatch) -> StepOutput:
        """Run one step. The batch has at least one request or one copy to do."""
        ...

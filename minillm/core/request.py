"""What a caller asks for, what the engine keeps while it serves, and what the caller gets back."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minillm.core.params import SamplingParams
from minillm.core.timeline import Timeline


class RequestStatus(enum.Enum):
    """Where a request stands in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Back in the waiting queue: its KV blocks were taken (recompute) or moved to the host (swap)."""
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a request has ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens, the context window, or the whole KV pool was used up."""
    ABORT = "abort"
    """Cancelled by the caller."""
    TIMEOUT = "timeout"
    """Waited longer than queue_timeout_s."""
    ERROR = "error"
    """The step it was part of failed."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities (natural, of the model's raw distribution) at one output position."""

    token_id: int
    logprob: float
    top: dict[int, float]
    """The `logprobs` most likely token ids at this position, likeliest first."""


@dataclass(eq=False, slots=True)
class Request:
    """One sequence inside the engine. The scheduler's whole rule reads two of its numbers:
    `num_tokens`, what it has, and `num_computed_tokens`, how many of those are in the KV cache."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    timeline: Timeline
    seed: int = 0
    """Resolved from params.seed or the engine's; with the position, decides each random draw."""
    priority: int = 0
    """Lower is served earlier (scheduling_order="priority")."""
    arrival_index: int = 0
    """Counts arrivals at the scheduler; ties are broken first come, first served."""

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_computed_tokens: int = 0
    window_begin: int = 0
    """Of its blocks after the attention sinks, those before this one have left the sliding window."""
    num_pending_tokens: int = 0
    """Output tokens that scheduled steps will yield and nobody has seen yet: with asynchronous scheduling
    the next step is put together before they are known."""
    draft: "Draft" = field(default_factory=lambda: Draft())
    """Tokens that may come next, to be checked in the step that is put together now; see speculation/."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    num_preemptions: int = 0
    preempted_at: float | None = None
    """Set from a preemption until it has caught up again; clock seconds."""
    recompute_until: int = 0
    """Tokens it had in the cache before its last preemption: computing below this is computing again."""
    text: str = ""
    """Output text released so far."""
    error: str | None = None
    """With FinishReason.ERROR: what went wrong."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Hash chain over its full blocks, extended as it grows; see kv_cache/prefix.py."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output, as far as anybody has seen them."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output, pending tokens included."""
        return self.num_known_tokens + self.num_pending_tokens

    @property
    def needs_history(self) -> bool:
        """Its next token depends on which ones came before in more than the KV cache: they must be known."""
        return self.params.has_penalty

    @property
    def draw_position(self) -> int:
        """Which of its output tokens is drawn now, from 0. It is the last of the pending ones."""
        return self.num_output_tokens + max(self.num_pending_tokens - 1, 0)

    def token_ids(self, start: int, end: int) -> list[int]:
        """Known tokens [start, end) of prompt + output, without building the whole list; behind them the draft's."""
        split, num_known = len(self.prompt_token_ids), self.num_known_tokens
        if end > num_known:
            return self.token_ids(start, num_known) + self.draft.token_ids[max(start - num_known, 0) : end - num_known]
        if end <= split:
            return self.prompt_token_ids[start:end]
        if start >= split:
            return self.output_token_ids[start - split : end - split]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - split]


@dataclass(slots=True)
class Draft:
    """Tokens that somebody guesses will follow a request's known ones."""

    token_ids: list[int] = field(default_factory=list)
    probs: Sequence[Any] | None = None
    """For each token the distribution [V] it was drawn from; None = they were not drawn but chosen."""

    def __len__(self) -> int:
        return len(self.token_ids)

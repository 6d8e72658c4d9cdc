"""A request inside the engine: the tokens it has, and how many of them are in the KV cache."""

import enum
from dataclasses import dataclass, field
from typing import Any

from minillm.core.brief import brief
from minillm.core.params import SamplingParams
from minillm.core.timeline import Timeline


class RequestStatus(enum.Enum):
    """Where a request stands in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Back in the waiting queue: its KV blocks were taken away."""
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
    """Waited too long in the queue."""
    ERROR = "error"
    """Its step failed, or its token couldn't be sampled or turned into text: `error` says which."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities (natural, of the model's raw distribution) at one output position."""

    token_id: int
    logprob: float
    top: dict[int, float]
    """The `logprobs` most likely token ids at this position, likeliest first."""


@dataclass(slots=True)
class Draft:
    """Tokens guessed to follow a request's known ones; the next step checks them."""

    token_ids: list[int] = field(default_factory=list)
    probs: Any = None
    """For the sampler only: the distributions they were drawn from, None if they were chosen without a draw."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. The scheduler's whole rule reads two of its numbers: `num_tokens`, the tokens it has, and
    `num_computed_tokens`, those of them that a step has been scheduled for. `num_missing` is the difference."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    timeline: Timeline
    seed: int = 0
    """Resolved from params.seed or the engine's; with the position, decides each random draw."""
    priority: int = 0
    """Lower is served earlier, under a queue policy that looks at it."""
    tenant: str = ""
    """Whose request it is, under a queue policy that looks at it."""
    cache_salt: str = ""
    """Requests share cached prefixes only if they have the same one; see block_pool.py."""
    streams: bool = True
    """The caller wants each token as it comes, not only the finished text."""
    arrival_index: int = 0
    """Counts arrivals at the scheduler; ties are broken first come, first served."""

    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    """What went wrong, with FinishReason.ERROR."""
    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    """Output text released so far."""

    num_computed_tokens: int = 0
    """Tokens, from the first, whose keys and values are in the KV cache once all scheduled steps are done: it
    advances when a step is scheduled. Drafts count until they are rejected, so it may exceed `num_tokens` meanwhile."""
    max_num_tokens: int = 0
    """Prompt and output at most; set when the scheduler gets it, as is the next one."""
    needs_history: bool = False
    """Its next token depends on earlier ones beyond the KV cache (penalties, a matcher): they must be known."""
    stop_token_ids: frozenset[int] = frozenset()
    """End its output; set when the engine gets it."""
    num_pending_tokens: int = 0
    """Output tokens that scheduled steps will yield and the host has not read yet. With asynchronous scheduling the
    next step is put together meanwhile; otherwise it's 0 again before that."""
    draft: Draft = field(default_factory=Draft)
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Hash chain over its full blocks, extended as it grows; see block_pool.py."""

    matcher: Any = None
    """For frontend and sampler only: which tokens may follow the output so far; None = any, and once it has ended."""

    num_preemptions: int = 0
    preempted_at: float | None = None
    """Set from a preemption until it has caught up again; clock seconds."""
    recompute_until: int = 0
    """Most tokens it had in the cache before a preemption: computing below this is computing again."""

    __repr__ = brief

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output, as far as the host has read them."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output, pending tokens included."""
        return len(self.prompt_token_ids) + len(self.output_token_ids) + self.num_pending_tokens

    @property
    def num_missing(self) -> int:
        """Tokens it has that are not computed. It is so many behind: 1 while it decodes."""
        # `num_tokens`, written out: this is asked of each running request in each step.
        num_known = len(self.prompt_token_ids) + len(self.output_token_ids)
        return num_known + self.num_pending_tokens - self.num_computed_tokens

    @property
    def awaits_token(self) -> bool:
        """Whether a pending token has to be seen before anything is computed after it: it is the last that it may have,
        or the next one depends on it in other ways than through the KV cache."""
        num_tokens = len(self.prompt_token_ids) + len(self.output_token_ids) + self.num_pending_tokens
        return self.num_pending_tokens > 0 and (self.needs_history or num_tokens >= self.max_num_tokens)

    @property
    def draw_position(self) -> int:
        """Which of its output tokens is drawn now, from 0: the last of the pending ones."""
        return self.num_output_tokens + max(self.num_pending_tokens - 1, 0)

    def token_ids(self, start: int, end: int) -> list[int]:
        """Known tokens [start, end) of prompt + output, without building the whole list; behind them the draft's.
        A pending token has no id yet: then there are fewer than end - start."""
        split = len(self.prompt_token_ids)
        if end <= split:
            return self.prompt_token_ids[start:end]
        known = self.output_token_ids[max(start - split, 0) : end - split]
        if start < split:
            known = self.prompt_token_ids[start:] + known
        if len(known) >= end - start:
            return known
        num_known = self.num_known_tokens
        return known + self.draft.token_ids[max(start - num_known, 0) : end - num_known]

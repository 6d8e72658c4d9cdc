"""What a caller asks for, what the engine keeps while it serves, and what the caller gets back."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from minillm.config import StrictModel
from minillm.errors import InvalidSamplingParamsError
from minillm.timeline import Timeline

if TYPE_CHECKING:
    from torch import Tensor

SEED_STRIDE = 1_000_003
"""A prime far above what people choose: seeds that are to be apart are so many apart, and never meet a neighbour's."""


class SamplingParams(StrictModel):
    """How the next token is chosen and when to stop. Every field works; unknown ones are refused."""

    _error: type[Exception] = InvalidSamplingParamsError

    max_tokens: int = Field(128, ge=1, description="most output tokens")
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_k: int = Field(0, ge=0, description="keep the k most likely tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set with this probability; 1 = all")
    min_p: float = Field(0.0, ge=0, le=1, description="drop tokens below min_p times the likeliest's probability")
    repetition_penalty: float = Field(1.0, gt=0, description="divides (or multiplies) logits of tokens seen; 1 = off")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted once from logits of tokens generated")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted per occurrence in the output")
    seed: int | None = Field(
        None, description="same seed, same output, whatever else is in the batch; see docs/engine.md about drafts"
    )
    stop: tuple[str, ...] = Field((), description="end when one of these appears; it is not part of the text")
    stop_token_ids: tuple[int, ...] = Field((), description="end when one of these is sampled")
    ignore_eos: bool = Field(False, description="go on past the model's end-of-sequence token")
    logprobs: int | None = Field(None, ge=0, le=20, description="report this many top log-probabilities per token")
    n: int = Field(1, ge=1, le=64, description="independent outputs for one prompt")

    @property
    def has_penalty(self) -> bool:
        """Whether what was said before changes the next token."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def has_filter(self) -> bool:
        """Whether unlikely tokens are left out: top-k, top-p or min-p."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @field_validator("stop", "stop_token_ids", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, (str, int)) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty")
        return value


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
    probs: "Tensor | None" = None
    """[len(token_ids) or more, V] the distribution each was drawn from; None = they were not drawn but chosen."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class AfterDraft:
    """A request as it would be if the first `num_drafts` tokens of its draft were its own: what the sampler reads
    to choose the token after them."""

    request: Request
    num_drafts: int

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

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
    def next_draft(self) -> "tuple[int, Tensor] | None":
        """The draft token at this place, and the distribution [V] it was drawn from; None if it was not drawn."""
        draft = self.request.draft
        if draft.probs is None or self.num_drafts >= len(draft):
            return None
        return draft.token_ids[self.num_drafts], draft.probs[self.num_drafts]


@dataclass(frozen=True, slots=True)
class Completion:
    """One of the n outputs of a request: everything so far, and what is new since the last look."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    logprobs: list[TokenLogprob] | None
    timeline: Timeline
    new_text: str = ""
    num_new_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's state at one moment; final when `finished`. The short properties speak of output 0."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[Completion]
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether all of its completions have ended."""
        return all(completion.finish_reason is not None for completion in self.completions)

    @property
    def text(self) -> str:
        """Of the first completion; so are the next ones."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """Its output tokens."""
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it has ended; None = it goes on."""
        return self.completions[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """One for each output token; None = they were not asked for."""
        return self.completions[0].logprobs

    @property
    def timeline(self) -> Timeline:
        """Its stamps, phases and latencies."""
        return self.completions[0].timeline

"""The n outputs that one request asked for, as the engine writes them and as the caller sees them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from minillm.core.brief import brief, cut
from minillm.core.request import FinishReason, Request, TokenLogprob
from minillm.core.timeline import Timeline
from minillm.frontend.detokenizer import Detokenizer

logger = logging.getLogger(__name__)


class Completion(NamedTuple):
    """One of the n outputs of a request: everything so far, and what is new since the last look."""

    text: str
    request_token_ids: list[int]
    """The request's own list, which goes on growing: a copy with every token would cost more the longer the output."""
    finish_reason: FinishReason | None
    request_logprobs: list[TokenLogprob] | None
    """The request's own list, too: one for each token; None = they were not asked for."""
    timeline: Timeline
    new_text: str = ""
    num_new_tokens: int = 0
    error: str | None = None
    num_tokens: int | None = None
    """Output tokens so far, which both lists begin with; None = all that are in them."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def token_ids(self) -> list[int]:
        """The output tokens so far, copied."""
        return self.request_token_ids[: self.num_tokens]

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """One for each token so far, copied; None = they were not asked for."""
        return None if self.request_logprobs is None else self.request_logprobs[: self.num_tokens]

    @property
    def num_old_tokens(self) -> int:
        """Output tokens that the last look showed."""
        num_tokens = len(self.request_token_ids) if self.num_tokens is None else self.num_tokens
        return num_tokens - self.num_new_tokens


class RequestOutput(NamedTuple):
    """A request's state at one moment; final when `finished`. The short properties speak of output 0."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[Completion]
    num_cached_tokens: int = 0

    def __repr__(self) -> str:
        first, *more = self.completions
        others = f" and {len(more)} more" if more else ""
        ended = first.finish_reason or "not finished"
        told = f"{len(first.token_ids)} tokens, {ended}: {cut(repr(first.text))}{others}"
        return f"RequestOutput({cut(self.request_id)}: {told})"

    @property
    def finished(self) -> bool:
        """Whether all of its completions have ended."""
        return None not in [completion.finish_reason for completion in self.completions]

    @property
    def is_prefilled(self) -> bool:
        """Whether its prompt was computed; not so if it ended in the queue."""
        return any(completion.timeline.prefill_end is not None for completion in self.completions)

    @property
    def text(self) -> str:
        """The first completion's text; the next ones are of the first completion, too."""
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


def up_to_now(output: RequestOutput) -> RequestOutput:
    """The same with all tokens that have come since, which the requests' own lists have. Text and cached tokens stay
    those of the last look."""
    return output._replace(completions=[completion._replace(num_tokens=None) for completion in output.completions])


@dataclass(slots=True)
class OutputSequence:
    """One of the n outputs being written: the scheduler's request, and its text so far."""

    request: Request
    detokenizer: Detokenizer
    seen_text: int = 0
    """Characters of request.text that an output has shown."""
    seen_tokens: int = 0

    def completion(self) -> Completion:
        """Everything so far, and what is new since the last look."""
        request, text, num_tokens = self.request, self.request.text, len(self.request.output_token_ids)
        new_text, num_new_tokens = text[self.seen_text :], num_tokens - self.seen_tokens
        self.seen_text, self.seen_tokens = len(text), num_tokens
        logprobs = None if request.params.logprobs is None else request.logprobs
        return Completion(
            text,
            request.output_token_ids,
            request.finish_reason,
            logprobs,
            request.timeline,
            new_text,
            num_new_tokens,
            request.error,
            num_tokens,
        )


@dataclass(slots=True)
class RequestGroup:
    """What one add_request call asked for: n sequences over one prompt."""

    request_id: str
    prompt: str | None
    stream: bool
    sequences: list[OutputSequence] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return None not in [sequence.request.finish_reason for sequence in self.sequences]

    def output(self) -> RequestOutput:
        """What the caller gets now. What is new in it will not be new the next time.

        With the last output log-probabilities leave the engine: its history of requests would keep them, and they can
        be a hundred times as large as the text.
        """
        completions = [sequence.completion() for sequence in self.sequences]
        first = self.sequences[0].request
        if first.finish_reason is not None and self.finished:
            for sequence in self.sequences:
                sequence.request.logprobs = []
        return RequestOutput(self.request_id, self.prompt, first.prompt_token_ids, completions, first.num_cached_tokens)


class OutputProcessor:
    """The requests in flight as their callers see them: detokenizes, finds stop strings, gathers outputs."""

    def __init__(self) -> None:
        self.groups: dict[str, RequestGroup] = {}
        self.sequences: dict[Request, tuple[RequestGroup, OutputSequence]] = {}

    def add(self, group: RequestGroup) -> None:
        """A request comes in."""
        self.groups[group.request_id] = group
        self.sequences |= {sequence.request: (group, sequence) for sequence in group.sequences}

    def on_token(self, request: Request, token_id: int) -> bool:
        """Add a token's text to its request. True if that reaches a stop string, or completes its grammar."""
        detokenizer = self.sequences[request][1].detokenizer
        request.text += detokenizer.add(token_id)
        if (matcher := request.matcher) is not None and matcher.consume_token(token_id) and matcher.is_stopped():
            return True
        return detokenizer.stopped_by is not None

    def gather(self, changed: Iterable[Request]) -> list[RequestOutput]:
        """An output for each group of the changed requests that streams or is complete."""
        groups: dict[str, RequestGroup] = {}
        for request in changed:
            has_ended = request.finish_reason is not None
            group = self.retire(request) if has_ended else self.sequences[request][0]
            if group.stream or (has_ended and group.finished):
                groups[group.request_id] = group
        return [group.output() for group in groups.values()]

    def retire(self, request: Request) -> RequestGroup:
        """A request has ended: flush its text, forget it. Returns its group."""
        group, sequence = self.sequences.pop(request)
        request.matcher = None  # the engine's history keeps the request
        try:
            request.text += sequence.detokenizer.finish()
        except Exception:  # it has ended all the same
            logger.exception("%s: the end of its text is lost", request.request_id)
        if group.finished:
            self.groups.pop(group.request_id, None)  # all n of them may time out in one stroke
        return group

    def retire_ended(self) -> None:
        """Retire what has ended without being gathered: a step was interrupted."""
        for request in [request for request in self.sequences if request.finish_reason is not None]:
            self.retire(request)

    def clear(self) -> None:
        """Forget all requests."""
        for request in self.sequences:
            request.matcher = None
        self.groups.clear()
        self.sequences.clear()

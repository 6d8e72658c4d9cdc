"""The n outputs that one request asked for, as the engine writes them and as the caller sees them."""

from dataclasses import dataclass, field

from minillm.detokenizer import Detokenizer
from minillm.request import Completion, Request, RequestOutput


@dataclass(slots=True)
class Sequence:
    """One of the n outputs being written: the scheduler's request, and its text so far."""

    request: Request
    detokenizer: Detokenizer
    seen_text: int = 0
    """Characters of request.text that an output has shown."""
    seen_tokens: int = 0

    def completion(self) -> Completion:
        """Everything so far, and what is new since the last look."""
        request, seen_text, seen_tokens = self.request, self.seen_text, self.seen_tokens
        self.seen_text, self.seen_tokens = len(request.text), request.num_output_tokens
        return Completion(
            text=request.text,
            token_ids=list(request.output_token_ids),
            finish_reason=request.finish_reason,
            logprobs=None if request.params.logprobs is None else list(request.logprobs),
            timeline=request.timeline,
            new_text=request.text[seen_text:],
            num_new_tokens=request.num_output_tokens - seen_tokens,
            error=request.error,
        )


@dataclass(slots=True)
class RequestGroup:
    """What one add_request call asked for: n sequences over one prompt."""

    request_id: str
    prompt: str | None
    stream: bool
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return all(sequence.request.finish_reason is not None for sequence in self.sequences)

    def output(self) -> RequestOutput:
        """What the caller gets now. What is new in it will not be new the next time.

        With the last output log-probabilities leave the engine: its history of requests would keep them, and they can
        be a hundred times as large as the text.
        """
        completions = [sequence.completion() for sequence in self.sequences]
        first = self.sequences[0].request
        if self.finished:
            for sequence in self.sequences:
                sequence.request.logprobs = []
        return RequestOutput(self.request_id, self.prompt, first.prompt_token_ids, completions, first.num_cached_tokens)

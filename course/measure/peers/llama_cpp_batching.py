"""Continuous batching over a llama.cpp context, as llama.cpp's own server does it.

Every step first takes the next token of each sequence that decodes, then as much prompt as its batch
holds. A prompt that begins like one that is already being served waits until that beginning is computed
and then takes over its keys and values: no prefix is computed twice. (Step by step:
`server_context::update_slots` in llama.cpp's tools/server.)
"""

import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from course.measure.peers.llama_cpp import LlamaCppContext

MIN_SHARED = 32
"""Tokens. A shorter common beginning is chance, and not worth waiting for."""


@dataclass(slots=True, eq=False)
class LlamaCppRequest:
    """One request, and how far llama.cpp has come with it."""

    prompt: np.ndarray
    """[prompt tokens], int32."""
    output_len: int
    tokens: list[int]
    """Prompt and output so far."""
    num_computed: int = 0
    sequence: int = -1
    source: "LlamaCppRequest | None" = None
    """Whose first `num_shared` tokens it waits for."""
    num_shared: int = 0
    stamps: list[float] = field(default_factory=list)
    """When each output token was there, seconds."""

    @classmethod
    def of(cls, prompt: Sequence[int], output_len: int) -> "LlamaCppRequest":
        return cls(np.array(prompt, dtype=np.int32), output_len, list(prompt))

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def finished(self) -> bool:
        return len(self.stamps) == self.output_len

    def assign(self, sequence: int, others: Sequence["LlamaCppRequest"]) -> None:
        """Give it a sequence id, and let it wait for the one it has most in common with."""
        self.sequence = sequence
        for other in others:
            shared = common_prefix(self.prompt, other.prompt)
            if shared > max(self.num_shared, MIN_SHARED - 1):
                self.source, self.num_shared = other, shared


def common_prefix(prompt: np.ndarray, other: np.ndarray) -> int:
    """Equal tokens at the start; at most all but the prompt's last, whose logits are needed."""
    length = min(len(prompt) - 1, len(other))
    if length <= 0 or prompt[0] != other[0]:
        return 0
    different = np.flatnonzero(prompt[:length] != other[:length])
    return int(different[0]) if len(different) else length


def serve(
    context: "LlamaCppContext", prompts: Sequence[Sequence[int]], output_lens: Sequence[int]
) -> list[LlamaCppRequest]:
    """Serve requests that all arrive now, each to exactly its output length, greedily.

    Returns:
        The requests, in the order of the prompts, with their outputs and stamps.
    """
    requests = [LlamaCppRequest.of(prompt, length) for prompt, length in zip(prompts, output_lens)]
    waiting, running = deque(requests), list[LlamaCppRequest]()
    free = list(range(context.num_sequences))  # a heap: ids in use stay close together
    while waiting or running:
        while waiting and free:
            request = waiting.popleft()
            request.assign(heapq.heappop(free), running)
            running.append(request)
        share_prefixes(context, running)
        emitting = fill_batch(context, running)
        tokens = context.decode()
        now = time.perf_counter()
        for request, token in zip(emitting, tokens.tolist()):
            request.tokens.append(token)
            request.stamps.append(now)
        share_prefixes(context, running)  # before one that is done gives its keys and values back
        for request in running:
            if request.finished:
                context.release(request.sequence)
                heapq.heappush(free, request.sequence)
        running = [request for request in running if not request.finished]
    return requests


def share_prefixes(context: "LlamaCppContext", running: Sequence[LlamaCppRequest]) -> None:
    """Copy what has been computed by now to the requests that wait for it."""
    for request in running:
        source = request.source
        if source is not None and source.num_computed >= request.num_shared:
            context.share(source.sequence, request.sequence, request.num_shared)
            request.num_computed, request.source = request.num_shared, None


def fill_batch(context: "LlamaCppContext", running: Sequence[LlamaCppRequest]) -> list[LlamaCppRequest]:
    """Fill one step's batch, those that decode first; ids ascending, since llama.cpp splits a batch at gaps.

    Returns:
        The requests whose last token is in it, in its order: each gets a token of output.
    """
    room = context.batch_tokens
    emitting = []
    ready = [request for request in running if request.source is None]
    for request in sorted(ready, key=lambda ready: (not ready.stamps, ready.sequence)):
        tokens = request.tokens[request.num_computed : request.num_computed + room]
        if not tokens:
            break  # The batch is full.
        complete = request.num_computed + len(tokens) == len(request.tokens)
        context.add(tokens, request.num_computed, request.sequence, complete)
        request.num_computed += len(tokens)
        room -= len(tokens)
        if complete:
            emitting.append(request)
    return emitting

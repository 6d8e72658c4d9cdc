"""What turning tokens into text costs, a token at a time as a stream needs it, and all at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.detokenizer import Detokenizer, TextDecoder


@dataclass(frozen=True, slots=True)
class DetokenizingCost:
    """CPU seconds a token."""

    streamed_s: float
    """Text after every token: a short window is decoded again each time (detokenizer.py)."""
    whole_s: float
    """One decode at the end: what an answer costs that is not streamed."""
    from_start_s: float
    """The naive way, all tokens so far after every token: it grows with the answer."""


def detokenizing_cost(tokenizer: TextDecoder, token_ids: Sequence[int], repeats: int = 5) -> DetokenizingCost:
    """The fastest of a few runs, each way.

    Args:
        token_ids: of one answer, at least one.
        repeats: runs; the fastest is the one that nothing else disturbed.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)  # the same that Detokenizer uses

    def streamed() -> None:
        detokenizer = Detokenizer(tokenizer, [])
        for token in token_ids:
            detokenizer.append([token])

    def whole() -> None:
        backend.decode(token_ids, skip_special_tokens=True)

    def from_start() -> None:
        for end in range(1, len(token_ids) + 1):
            backend.decode(token_ids[:end], skip_special_tokens=True)

    costs = []
    for way in (streamed, whole, from_start):
        runs = []
        for _ in range(repeats):
            start = time.process_time()
            way()
            runs.append(time.process_time() - start)
        costs.append(min(runs) / len(token_ids))
    return DetokenizingCost(*costs)

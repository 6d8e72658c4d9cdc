"""What a configuration makes of a text: the logits after each of its tokens, through the engine's own parts.

The text is computed as one prompt, in the configured KV cache and by the configured backend: attention reads keys and
values as they are kept, so whatever they lose is seen here.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.attention.base import blocks_for
from minillm.engine import Engine
from minillm.errors import ConfigError
from minillm.request import Request, SamplingParams
from minillm.runners.batch_tensors import lay_out, upload
from minillm.scheduling.batch import ScheduledRequest
from minillm.timeline import Timeline

TEXTS = Path(__file__).parent / "texts"
CHUNK = 512
"""Tokens of the held text that are scored with each other as context."""
ROWS = 64
"""Positions whose logits are turned into probabilities at once: the vocabulary is wide."""


def held_text() -> str:
    """A story, an explanation, code, a recipe, a letter, minutes, an essay: 9 KB, written for this project."""
    return (TEXTS / "held.txt").read_text(encoding="utf-8")


def load_items(name: str) -> dict[str, Any]:
    return json.loads((TEXTS / f"{name}.json").read_text(encoding="utf-8"))


@torch.inference_mode()
def text_logits(engine: Engine, token_ids: list[int]) -> Tensor:
    """Logits [T, V] after each token. The engine is idle; what its KV pool held is overwritten.

    Raises:
        ConfigError: the tokens do not fit the pool.
    """
    runner = engine.runner
    num_blocks = blocks_for(len(token_ids), runner.block_size)
    if num_blocks > runner.num_kv_blocks:
        raise ConfigError(f"a text of {len(token_ids)} tokens does not fit the KV pool: raise num_kv_blocks")
    engine.reset_prefix_cache()
    request = Request("text", token_ids, SamplingParams(), Timeline(0.0))
    scheduled = ScheduledRequest(request, 0, len(token_ids), list(range(num_blocks)), True)
    tensors = upload(lay_out([scheduled], runner.block_size, runner.kv_pool.null_block, {}), runner.device, None)
    attention = runner.attention(tensors.metadata)
    decoder, layers = runner.model.decoder, runner.kv_pool.layers
    return decoder(tensors.token_ids, tensors.positions, layers, attention, runner.ops)


@dataclass(slots=True)
class TextScore:
    """Sums over the scored positions of a text, of a reference and of a candidate. Natural logarithms."""

    positions: int = 0
    reference_loss: float = 0.0
    candidate_loss: float = 0.0
    kl: float = 0.0
    """KL(reference || candidate)."""
    agreed: int = 0
    """Positions where both have the same likeliest token."""

    def add(self, reference: Tensor, candidate: Tensor, next_ids: Tensor) -> None:
        """Logits [n, V] of both, and the tokens [n] that really came."""
        for rows in torch.arange(len(next_ids), device=next_ids.device).split(ROWS):
            ours, theirs = (logits[rows].float().log_softmax(-1) for logits in (candidate, reference))
            truth = next_ids[rows, None]
            self.reference_loss -= theirs.gather(1, truth).sum().item()
            self.candidate_loss -= ours.gather(1, truth).sum().item()
            self.kl += (theirs.exp() * (theirs - ours)).sum().item()
            self.agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            self.positions += len(rows)

    @property
    def reference_perplexity(self) -> float:
        return math.exp(self.reference_loss / self.positions)

    @property
    def candidate_perplexity(self) -> float:
        return math.exp(self.candidate_loss / self.positions)


def score_text(reference: Engine, candidate: Engine, text: str, most_tokens: int | None = None) -> TextScore:
    """Both engines on one text, a chunk at a time."""
    token_ids, score = reference.tokenizer.encode(text)[:most_tokens], TextScore()
    for start in range(0, len(token_ids) - 1, CHUNK):
        chunk = token_ids[start : start + CHUNK]
        if len(chunk) < 2:
            break
        both = [text_logits(engine, chunk)[:-1] for engine in (reference, candidate)]
        score.add(*both, torch.tensor(chunk[1:], device=both[0].device))
    return score


def choose(engine: Engine, beginning: str, endings: list[str]) -> int:
    """The ending that the model finds likeliest, per token: its index; -1 if a likelihood is no number."""
    prompt, scores = engine.tokenizer.encode(beginning), []
    for ending in endings:
        ids = engine.tokenizer.encode(ending)
        logprobs = text_logits(engine, prompt + ids)[len(prompt) - 1 : -1].float().log_softmax(-1)
        scores.append(logprobs[torch.arange(len(ids)), torch.tensor(ids, device=logprobs.device)].mean().item())
    if not all(map(math.isfinite, scores)):
        return -1
    return max(range(len(endings)), key=scores.__getitem__)

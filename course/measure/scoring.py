"""What a configuration makes of a text: the logits after its tokens, through the engine's own parts.

A text's beginning is computed as a prompt, and every other token by itself, as a step of decode: by the kernels that
answers are written with, compiled or recorded where the configuration says so, over keys and values as they are kept.
Each token is the one that really came, whatever the model would have said. What is scored is what those steps say.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.frontend.engine import Engine
from minillm.kernels.attention.window import Window

TEXTS = Path(__file__).parent / "texts"
CHUNK = 512
"""The held text is cut into pieces of this many tokens or some more."""
GIVEN = 4
"""The first of so many parts of a piece is a prompt, and not scored."""
WINDOWS = 4
"""A piece is at least as long as so many windows: then all that is scored lies beyond the first window."""
ROWS = 64
"""Positions whose logits are turned into probabilities in one go: the vocabulary is wide."""


def held_text() -> str:
    """A story, an explanation, code, a recipe, a letter, minutes, an essay: 9 KB, written for this project."""
    return (TEXTS / "held.txt").read_text(encoding="utf-8")


def load_items(name: str) -> Any:
    """A file of the texts that settings are judged on, by name."""
    return json.loads((TEXTS / f"{name}.json").read_text(encoding="utf-8"))


class Decoded(NamedTuple):
    """One step over the texts that still go on."""

    texts: list[int]
    """Which, n of them"""
    next_ids: Tensor
    """[n] the token that really comes next in each"""
    logits: Tensor
    """[n, V] what the model says comes next"""


@torch.inference_mode()
def decode_texts(
    engine: Engine, texts: Sequence[list[int]], num_given: Sequence[int], *, num_shared: int = 0
) -> Iterator[Decoded]:
    """Decode texts side by side, each told what really came. The first step is that of the prompts' last tokens.

    The engine is idle; what its KV pool held is overwritten.

    Args:
        texts: token ids.
        num_given: how many of each are its prompt, at least 1, and not all.
        num_shared: tokens with which all texts begin, fewer than any prompt has: their full blocks are computed once.
    Raises:
        ConfigError: the texts do not fit the pool.
    """
    runner = engine.torch_runner
    engine.reset_prefix_cache()
    tables = block_tables([len(text) for text in texts], runner.block_size, runner.num_kv_blocks)
    shared_blocks = num_shared // runner.block_size
    for table in tables[1:]:
        table[:shared_blocks] = tables[0][:shared_blocks]
    begins = [0, *[shared_blocks * runner.block_size] * (len(texts) - 1)]
    requests = [Request(f"text-{i}", text, SamplingParams(), Timeline(0.0)) for i, text in enumerate(texts)]

    def step(i: int, start: int, num_tokens: int) -> ScheduledRequest:
        return ScheduledRequest(requests[i], start, num_tokens, tables[i], samples=True)

    def logits_of(batch: list[ScheduledRequest]) -> Tensor:
        laid_out = runner.prepare(batch)
        return runner.forward(laid_out)[[laid_out.rows.index(scheduled.request) for scheduled in batch]]

    going, done = list(range(len(texts))), 0
    try:
        logits = torch.cat([logits_of([step(i, begins[i], num_given[i] - begins[i])]) for i in going])
        while True:
            truth = torch.tensor([texts[i][num_given[i] + done] for i in going], device=logits.device)
            yield Decoded(going, truth, logits)
            done += 1
            going = [i for i in going if num_given[i] + done < len(texts[i])]
            if not going:
                break
            logits = logits_of([step(i, num_given[i] + done - 1, 1) for i in going])
    finally:
        for request in requests:  # a drafter keeps something for each
            engine.drafts.forget(request)


def block_tables(lengths: Sequence[int], block_size: int, num_blocks: int) -> list[list[int]]:
    """Blocks of its own for each of some texts. Raises ConfigError if there are too few."""
    tables: list[list[int]] = []
    first = 0
    for length in lengths:
        tables.append(list(range(first, first + blocks_for(length, block_size))))
        first += len(tables[-1])
    if first > num_blocks:
        raise ConfigError(f"texts of {sum(lengths)} tokens do not fit the KV pool: raise num_kv_blocks")
    return tables


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
    """Both engines on one text, cut into pieces that are decoded side by side.

    Raises:
        ConfigError: the text is too short for the larger of their windows, or does not fit a KV pool.
    """
    token_ids, score = reference.tokenizer.encode(text)[:most_tokens], TextScore()
    configs = [engine.config for engine in (reference, candidate)]
    seen = max(window_tokens(Window(config.sliding_window, config.attention_sinks)) for config in configs)
    pieces = cut(token_ids, seen)
    num_given = [max(len(piece) // GIVEN, 1) for piece in pieces]
    # strict: otherwise the second would never come to its end, and never forget its drafts.
    both = zip(*(decode_texts(engine, pieces, num_given) for engine in (reference, candidate)), strict=True)
    for theirs, ours in tqdm(both, total=max(map(len, pieces)) * (GIVEN - 1) // GIVEN, desc="text", leave=False):
        score.add(theirs.logits, ours.logits, ours.next_ids)
    return score


def window_tokens(window: Window) -> int:
    """Most tokens in sight; 0 = all of them, whatever their number."""
    return 0 if window.size is None else window.size + window.sinks


def cut(token_ids: list[int], seen: int) -> list[list[int]]:
    """Pieces of about the same length, CHUNK or more.

    Args:
        seen: tokens that are in sight at most; 0 = all.
    Raises:
        ConfigError: the text has fewer than twice as many: what goes out of sight would hardly be missed.
    """
    if 2 * seen > len(token_ids):
        raise ConfigError(
            f"a token sees {seen} tokens (sliding_window and attention_sinks), and the text has {len(token_ids)}: what "
            "the window loses would not be seen. Measure a smaller one, without --quick; a larger one loses less"
        )
    num_pieces = max(len(token_ids) // max(CHUNK, WINDOWS * seen), 1)
    ends = [len(token_ids) * i // num_pieces for i in range(num_pieces + 1)]
    return [token_ids[start:end] for start, end in itertools.pairwise(ends)]


def choose(engine: Engine, beginning: str, endings: list[str]) -> int:
    """The ending that the model finds likeliest, per token: its index; -1 if a likelihood is no number."""
    prompt = engine.tokenizer.encode(beginning)
    tails = [engine.tokenizer.encode(ending) for ending in endings]
    sums = [0.0] * len(endings)
    texts, num_given = [prompt + tail for tail in tails], [len(prompt)] * len(tails)
    for step in decode_texts(engine, texts, num_given, num_shared=len(prompt) - 1):
        logprobs = step.logits.float().log_softmax(-1).gather(1, step.next_ids[:, None])[:, 0]
        for i, logprob in zip(step.texts, logprobs.tolist()):
            sums[i] += logprob
    if not all(map(math.isfinite, sums)):
        return -1
    return max(range(len(endings)), key=lambda i: sums[i] / len(tails[i]))

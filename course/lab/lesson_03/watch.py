"""The real thing: the attention weights of one head, as the model computes them for a sentence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course.lab.lab import Lab
from course.lab.lesson_03 import traffic
from course.lab.style import PHASE_COLOURS, WIDTH
from course.lab.svg import FAINT, SOFT, Picture, boxes, text
from minillm import SamplingParams
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.attention.eager import EagerAttention, visible_keys

SENTENCE = "The crane lifts four tonnes at most, and two tonnes when the wind is strong."
MOST_TOKENS = 32
SHADES = 6


@dataclass(frozen=True)
class Weights:
    """How much each token of a text looks at each token before it."""

    words: tuple[str, ...]
    layer: int
    head: int
    weights: Tensor
    """[n, n]; a row sums to 1."""


class Watched(EagerAttention):
    """Textbook attention that leaves each layer's weights behind, [heads, n, n]."""

    seen: list[Tensor]

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        n, num_heads, _ = query.shape
        keys = kv_cache[self.metadata.context(0)[0].long()].flatten(0, 1)[:n, 0].to(query.dtype)
        keys = keys.repeat_interleave(num_heads // keys.shape[1], dim=1)
        positions = torch.arange(n, device=query.device)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
        hidden = ~visible_keys(positions, positions, None)
        self.seen.append(scores.masked_fill(hidden, float("-inf")).softmax(-1).float().cpu())
        return super().attend(query, kv_cache, scale)


def look(lab: Lab, sentence: str = SENTENCE, layer: int | None = None, head: int = 0) -> Weights:
    """Compute a sentence, and keep one head's weights.

    Args:
        layer: None = the one in the middle.
    """
    with lab.alone():
        engine = lab.engine(**{**traffic.fields(lab, 64), "attention_backend": "eager"})
        ids = engine.tokenizer.encode(sentence)[:MOST_TOKENS]
        seen: list[Tensor] = []
        engine.runner.attention = lambda metadata: _watch(metadata, seen)
        engine.add_request(ids, SamplingParams(max_tokens=1), stream=False)
        while engine.has_unfinished:
            engine.step()
    layer = len(seen) // 2 if layer is None else layer
    words = tuple(engine.tokenizer.decode([token]) for token in ids)
    return Weights(words, layer, head, seen[layer][head])


def _watch(metadata: object, seen: list[Tensor]) -> Watched:
    watched = Watched(metadata)
    watched.seen = seen
    return watched


def draw_weights(found: Weights) -> Picture:
    """A row a token: whom it looks at, the stronger the more. Nobody looks ahead."""
    n = len(found.words)
    cell, left, top = min(15.0, 360 / n), 110.0, 8.0
    shades: dict[int, list[tuple[float, float, float, float]]] = {}
    for row in range(n):
        for column in range(row + 1):
            share = float(found.weights[row, column])
            shade = min(SHADES, round(SHADES * share**0.5 + 0.49))
            shades.setdefault(shade, []).append((left + cell * column, top + cell * row, cell - 1, cell - 1))
    colour = PHASE_COLOURS["prefill"]
    body = boxes(shades.pop(0, []), fill="none", stroke=FAINT)
    for shade, cells in sorted(shades.items()):
        body += boxes(cells, fill=colour, fill_opacity=round(shade / SHADES, 2), stroke=FAINT, stroke_width=0.5)
    for row, word in enumerate(found.words):
        written = word.replace("\n", "⏎") or "·"
        body += text(left - 6, top + cell * (row + 0.75), written, size=min(12.0, cell), text_anchor="end")
    pairs = n * (n + 1) // 2
    notes = (
        f"{n} tokens: {pairs} pairs,",
        "in each head of each layer.",
        "",
        "A row: one token. The stronger a",
        "cell, the more it takes from there.",
        "Above the diagonal: the future,",
        "which nobody may look at.",
    )
    beside = left + cell * n + 24
    body += "".join(text(beside, top + 14 + 17 * i, words, size=12, fill=SOFT) for i, words in enumerate(notes))
    first = float(found.weights[:, 0].mean())
    told = (
        f"Attention weights of layer {found.layer}, head {found.head}, over {n} tokens: a lower triangle of {pairs} "
        f"cells. On average a token gives {first:.0%} of its attention to the first one."
    )
    return Picture("Who looks at whom while a prompt is read?", body, top + cell * n + 8, WIDTH, told)

"""The quality gate, on the text of `minillm bench quality`: what a smaller cache saves, and what it costs.

Reference and candidates decode the same pieces of text, each token by itself, each told what really came. Seconds are
left out here: they belong to lesson 09.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lessons.lesson_07 import traffic
from course.measure.quality import REQUEST_TOKENS, Floors, request_bytes
from course.measure.scoring import GIVEN, TextScore, cut, decode_texts, held_text, window_tokens
from minillm import Engine
from minillm.kernels.attention.window import Window

SPARE_BLOCKS = 8
"""Each piece of the text fills its last block only in part."""
MOST_TOKENS, WINDOW = 1100, 128
MOST_TOKENS_SHORT, WINDOW_SHORT = 160, 32
"""Of the text, and the window that is tried: a quarter of the text at most, so that most of it lies beyond."""
SINKS = 4


@dataclass(frozen=True)
class Loss:
    """One candidate, against the same model with its whole cache."""

    name: str
    score: TextScore
    kv_share: float
    """Of the reference's bytes, for a request of REQUEST_TOKENS."""

    @property
    def rise(self) -> float:
        """Of perplexity (between how many equally likely tokens the model wavers, so to speak). 0.01 = one percent."""
        return self.score.candidate_perplexity / self.score.reference_perplexity - 1

    @property
    def kl(self) -> float:
        return self.score.kl / self.score.positions

    @property
    def agreement(self) -> float:
        """Share of positions with the same likeliest token."""
        return self.score.agreed / self.score.positions

    def broken(self, floors: Floors) -> list[str]:
        """Names of floors that it did not keep; NaN keeps none."""
        kept = {
            "perplexity": self.rise <= floors.perplexity_rise,
            "KL": self.kl <= floors.kl,
            "likeliest token": self.agreement >= floors.agreement,
        }
        return [name for name, is_kept in kept.items() if not is_kept]


def candidates(lab: Lab) -> dict[str, dict[str, Any]]:
    """Three ways to a smaller cache."""
    size = WINDOW if lab.scale == 1 else WINDOW_SHORT
    return {
        "KV in int8": {"kv_cache_dtype": "int8"},
        f"window of {size}": {"sliding_window": size},
        f"window of {size}, {SINKS} sinks": {"sliding_window": size, "attention_sinks": SINKS},
    }


def most_tokens(lab: Lab) -> int:
    """Of the text that is decoded."""
    return MOST_TOKENS if lab.scale == 1 else MOST_TOKENS_SHORT


def measure(lab: Lab) -> dict[str, Loss]:
    """All candidates beside one reference, over the same text."""
    tried = candidates(lab)
    pool = {"num_kv_blocks": most_tokens(lab) // traffic.BLOCK + SPARE_BLOCKS}
    with lab.alone():
        reference, *others = [traffic.engine(lab, **pool, **fields) for fields in ({}, *tried.values())]
        pieces = cut(reference.tokenizer.encode(held_text())[: most_tokens(lab)], max(map(_seen, others)))
        num_given = [max(len(piece) // GIVEN, 1) for piece in pieces]
        scores = [TextScore() for _ in others]
        for theirs, *ours in zip(*(decode_texts(engine, pieces, num_given) for engine in (reference, *others))):
            for score, step in zip(scores, ours):
                score.add(theirs.logits, step.logits, step.next_ids)
    whole = request_bytes(reference)
    return {
        name: Loss(name, score, request_bytes(engine) / whole) for name, engine, score in zip(tried, others, scores)
    }


def losses_table(found: Mapping[str, Loss]) -> Html:
    """What each saves beside what it loses, and whether it keeps the floors."""
    floors = Floors()
    rows = [("as the model is", "100%", "", "", "", "the reference")]
    for loss in found.values():
        broken = loss.broken(floors)
        rows.append(
            (
                loss.name, f"{loss.kv_share:.0%}", f"{loss.rise:+.1%}", f"{loss.kl:.4f}",
                f"{loss.agreement:.1%}", f"breaks: {', '.join(broken)}" if broken else "keeps all three",
            )
        )  # fmt: skip
    header = (
        "", f"KV of {REQUEST_TOKENS:,} tokens",
        f"perplexity (floor {floors.perplexity_rise:+.0%})", f"KL, nats (floor {floors.kl})",
        f"same likeliest (floor {floors.agreement:.0%})", "floors",
    )  # fmt: skip
    return as_table(header, rows)


def _seen(engine: Engine) -> int:
    return window_tokens(Window(engine.config.sliding_window, engine.config.attention_sinks))

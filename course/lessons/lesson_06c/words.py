"""Lesson 06c's numbers to know. No article's claim belongs to it: none mentions linear or sparse attention."""

from collections.abc import Callable

from course.lab.claims import Claim
from course.lab.display import Html
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.style import size
from course.lessons.lesson_06c.run import DTYPE, HYBRID, MODELS, SPARSE, even_tokens, read


def three_numbers() -> Html:
    """The lesson's three numbers."""
    hybrid, sparse = MODELS[HYBRID], MODELS[SPARSE]
    linear = hybrid.layers - hybrid.growing_layers
    dense = sparse.kv_bytes_per_token(DTYPE) * 128_000
    return know_cold(
        (
            size(hybrid.fixed_bytes),
            "of states per request, Qwen3.5 397B",
            f"{linear} layers × (64 × 128 × 128 + convolution) × 4 B",
        ),
        (
            f"{even_tokens(hybrid):,.0f} tokens",
            "of context from which on states take less than the KV they replace",
            "state / KV per token of those layers",
        ),
        (
            f"{read(sparse, 128_000) / dense:.0%}",
            "of a request's cache is what GLM-5's step reads at 128k tokens",
            "an index key for each token, and 2,048 latent vectors",
        ),
    )


MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""Today's drafters beside each other: what a guess reads, and the acceptance at which it breaks even at 70B."""

from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.style import size
from course.lessons.lesson_08.formulas import break_even, emitted
from course.simulator.cost.models import find_model

K = 4
TARGET = find_model("llama-3-70b")
LAYER = 2 * TARGET.layer_params / TARGET.layers
"""Bytes of one layer in 16 bits."""
DRAFT_VOCABULARY = 32_000
"""Tokens that EAGLE-3's head for Llama-3 scores, of 128,256."""


@dataclass(frozen=True)
class Drafter:
    """One way to guess."""

    what: str
    read: float
    """Bytes that one guess reads, at least."""
    published: str

    @property
    def c(self) -> float:
        """A guess in decode steps, at best: its bytes over the target's."""
        return self.read / (TARGET.read_bytes("bfloat16"))


DRAFTERS = {
    "n-gram lookup": Drafter("a search in the text so far", 0.0, "free; passes when the answer copies the prompt"),
    "draft model, 1B": Drafter(
        "a small model of the same family", find_model("llama-3.2-1b").read_bytes("bfloat16"),
        "needs its own KV cache, and a prefill of every prompt",
    ),
    "EAGLE-3 head": Drafter(
        "one layer on the target's own features", LAYER + 2 * DRAFT_VOCABULARY * TARGET.hidden,
        "up to 6.5x alone, 1.4x throughput at batch 64 (SGLang, H100)",
    ),
    "MTP module": Drafter(
        "one layer trained with the model", LAYER + 2 * TARGET.vocab_size * TARGET.hidden,
        "second token passes 85 to 90%, 1.8x (DeepSeek-V3)",
    ),
}  # fmt: skip


def drafters_table() -> Html:
    """Each drafter: its bytes, its price at best, and the acceptance it needs."""
    rows = []
    for name, each in DRAFTERS.items():
        needed = break_even(K, each.c)
        rows.append((name, each.what, size(each.read), f"{each.c:.3f}", f"{needed or 0:.2f}", each.published))
    header = ("drafter", "what it is", "reads per guess", "c, at best", f"α to break even, k = {K}", "published")
    return as_table(header, rows)


def mtp() -> str:
    """Tokens a step with DeepSeek-V3's published acceptance of its one extra token, by the formula."""
    low, high = (emitted(alpha, 1) for alpha in (0.85, 0.90))
    return f"1 + α = {low:.2f} to {high:.2f} tokens per step; the report says 1.8x tokens per second"

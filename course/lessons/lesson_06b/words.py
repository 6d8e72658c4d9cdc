"""What the run of lesson 06b showed. No article's claim belongs to it: none mentions experts or latent attention."""

from collections.abc import Callable, Mapping

from course.lab.claims import Claim
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.style import size
from course.lessons.lesson_06b.run import BET, expected
from course.simulator.cost.models import find_model


def shares(found: Mapping[int, float]) -> Finding:
    """How far the engine's routing was from even."""
    even, ends = expected(128, 8, BET), {"few": found[min(found)], "many": found[max(found)], "most": max(found)}
    outcome = "favourites" if found[BET] < 0.95 * even else "even"
    return tell("06b", "shares", outcome, here=found[BET], even=even, batch=BET, **ends)


def three_numbers() -> Html:
    one, two, some = (expected(128, 8, tokens) for tokens in (1, 2, 64))
    latent = find_model("deepseek-v3").kv_bytes_per_token("bfloat16")
    grouped = find_model("llama-3-70b").kv_bytes_per_token("bfloat16")
    return know_cold(
        (
            f"{one:.0%} and {some:.0%}",
            "of the experts, read by 1 and by 64 tokens: 8 of 128, all equally likely",
            "1 - (1 - k/E)^B",
        ),
        (f"× {two / one:.2f}", "the experts that a step reads with one draft token, at batch size 1", "same"),
        (
            f"{size(latent)} against {size(grouped)}",
            "KV per token: DeepSeek-V3 with MLA, and a 70B with GQA, a tenth its size",
            "61 × 576 × 2 bytes; 2 × 80 × 8 × 128 × 2 bytes",
        ),
    )


MEASURE: dict[str, Callable[[Lab], Claim]] = {}

"""The check of lesson 07b. Keys come from the losses that are passed in, from the model's shape, and from the tiers."""

from collections.abc import Mapping
from dataclasses import replace

from course.grading import Checks, Criterion, Question, choice, near
from course.lab.style import with_minus
from course.lessons.lesson_07.run import Account
from course.lessons.lesson_07b import run
from course.lessons.lesson_07b.run import Loss
from course.measure.quality import QualityLimits

LONG, WINDOW = 6000, 2048
"""Tokens of the question about windows."""


def checks(large: Account, losses: Mapping[str, Loss]) -> Checks:
    """Questions about what makes a KV cache smaller, or keeps it elsewhere.

    q1: share (0 to 1) of a 6000-token request's KV that a window of 2048 frees.
    q2: "yes" or "no": does KV in int8 keep the limits of the quality gate here?
    q3: seconds that 4096 tokens of Llama-3-70B's KV take from a tier of 50 GB/s.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = 1 - replace(large, window=WINDOW).chat_bytes_at(LONG) / replace(large, window=None).chat_bytes_at(LONG)
        slips = {1 - key: "that's the share that stays", 0.7: "that's the article's figure, true of one length"}
        return (near(answer, key, "share freed", slips, percent=True),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        loss = losses["KV in int8"]
        broken = loss.broken(QualityLimits())
        rise = with_minus(f"{loss.rise:+.1%}")
        told = f"perplexity {rise}, KL {loss.kl:.4f}, same most likely token in {loss.agreement:.1%}"
        words = f"{told}; it breaks {', '.join(broken)}" if broken else f"{told}; it keeps all three limits"
        return choice(answer, "no" if broken else "yes", {"yes": words, "no": words})

    def q3(answer: object) -> tuple[Criterion, ...]:
        key = run.fetch_s(4096, 50.0, 0.0)
        slips = {
            4 * key: "the link feeds all four GPUs together: don't count the KV four times",
            1000 * key: "that's in milliseconds",
        }
        return (near(answer, key, "seconds to fetch", slips),)

    questions = {
        "q1": Question(
            "What share of a 6,000-token request's KV does a window of 2,048 tokens (and 4 sinks) free?", "0 to 1"
        ),
        "q2": Question("Does KV in int8 meet the limits of the quality gate here?", options=("yes", "no")),
        "q3": Question("Llama-3-70B: how long does it take to fetch the KV of 4,096 tokens at 50 GB/s?", "s"),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)

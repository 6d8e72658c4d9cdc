"""The check of lesson 05b. Keys come from the model's shape and from the simulated fleets."""

from course.grading import Checks, Criterion, Question, choice, near
from course.lessons.lesson_05b.run import prefill_s, token_bytes, transfer_s


def checks() -> Checks:
    """Questions about the transfer and about the split.

    q1: GB of KV that a 4096-token prompt of Llama-3-70B in bf16 moves.
    q2: seconds that takes at 400 Gb/s.
    q3: prompts of 32k tokens, answers of 50: "more prefill replicas" or "more decode replicas"?
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = 4096 * token_bytes() / 1e9
        return (near(answer, key, "GB", {key / 2: "count both keys and values", 8 * key: "that's gigabits"}),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = transfer_s(4096, 400)
        slips = {key / 8: "the link is in bits, the KV in bytes: multiply by 8", 1000 * key: "that's in milliseconds"}
        return (near(answer, key, "seconds", slips),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        share = prefill_s(32768)
        told = (
            f"one such prompt keeps a replica busy for {share:.1f} s; 50 tokens take about a second, in steps that a "
            "whole batch shares"
        )
        options = dict.fromkeys(("more prefill replicas", "more decode replicas"), told)
        return choice(answer, "more prefill replicas", options)

    questions = {
        "q1": Question("How much KV do 4,096 tokens of Llama-3-70B in bf16 move?", "GB"),
        "q2": Question("How long does that take at 400 Gb/s?", "s"),
        "q3": Question(
            "Prompts have 32k tokens, answers 50. What do you add?",
            options=("more prefill replicas", "more decode replicas"),
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)

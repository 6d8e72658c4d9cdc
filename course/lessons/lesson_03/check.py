"""The check of lesson 03. Keys come from the model's shape and from the runs of a long prompt among chats."""

from collections.abc import Sequence

from course.grading import Checks, Criterion, Question, as_count, as_number, choice, near
from course.lab.style import seconds
from course.lessons.lesson_03.run import BIG, Trade, attention_share, crossover, score_bytes, shape_of
from minillm.model.config import ModelConfig


def checks(shape: ModelConfig, trades: Sequence[Trade]) -> Checks:
    """Questions about the lab's model and about the long prompt among chats.

    q1: the prompt length at which attention takes as many FLOPs as the matrices, tokens.
    q2: MB of scores that textbook attention builds for 2048 tokens, one layer, in float32.
    q3: who gains when the chunks become smaller: "the long prompt" or "the others".
    q4: how often all weights are read to compute the prompt in the smallest of these chunks.
    q5: with attention for nothing, by how many percent would a 70B's prefill of 4096 tokens shrink, in FLOPs?
    """
    smallest, whole = (find(trades, key=lambda each: each.chunk) for find in (min, max))

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = crossover(shape)
        hint = "half of that square is in the future and isn't needed, so there are n²/2 pairs"
        return (near(answer, key, "crossover, tokens", {key / 2: hint}, 0.03),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = score_bytes(shape, 2048, 2048) / 1e6
        hints = {
            key / shape.num_heads: f"that's one head; a layer has {shape.num_heads}",
            key * shape.num_layers: "that's all layers, but their scores don't exist at the same time",
            key / 2: "that's the half that's needed, but textbook attention also builds the other half, and masks it",
        }
        return (near(answer, key, "scores, MB", hints),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        own = (
            f"its TTFT went from {seconds(whole.ttft)} whole to {seconds(smallest.ttft)} in chunks of {smallest.chunk}"
        )
        gaps = f"their longest gap went from {seconds(whole.worst_gap)} to {seconds(smallest.worst_gap)}"
        key = "the others" if smallest.worst_gap < whole.worst_gap else "the long prompt"
        return choice(answer, key, {"the long prompt": own, "the others": gaps})

    def q4(answer: object) -> tuple[Criterion, ...]:
        found = (
            f"{smallest.tokens} tokens, at most {smallest.chunk} a step: {smallest.steps} steps, each reads all weights"
        )
        return (Criterion("steps", float(as_count(answer) == smallest.steps), 1, "", found),)

    def q5(answer: object) -> tuple[Criterion, ...]:
        key = 100 * attention_share(shape_of(BIG), 4096)
        as_share = {key / 100: "that's the share; the question asks for percent"}
        graded = near(answer, key, "percent of the FLOPs", as_share, 0.1)
        if graded.earned < 1 and 60 <= as_number(answer) <= 70:
            hint = "that's the popular figure; work it out from this model's shape"
            return (Criterion(graded.name, 0.0, 1, hint, graded.reveal),)
        return (graded,)

    questions = {
        "q1": Question("In this lab's model, at how many tokens is attention as much work as the matrices?", "tokens"),
        "q2": Question(
            "Textbook attention, 2,048 tokens, one layer, float32: how big is the score matrix? (shape.num_heads)", "MB"
        ),
        "q3": Question("Who gains from smaller chunks?", options=("the long prompt", "the others")),
        "q4": Question(
            f"{smallest.tokens:,} tokens in chunks of {smallest.chunk}: how many times are all weights read for them?",
            "times",
        ),
        "q5": Question("A 70B, 4,096 tokens: if attention were free, by how much would the prefill's FLOPs fall?", "%"),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5}, questions)

"""The check of lesson 06b. Keys come from the models' shapes and the cards' memory."""

from course.grading import Checks, Criterion, Question, near
from course.lessons.lesson_06b.run import expected, room
from course.simulator.cost.models import find_model


def checks() -> Checks:
    """Questions about experts that are read, and latent KV that is copied.

    q1: share (0 to 1) of a layer's experts that 4 tokens are expected to read in Mixtral (2 of 8 experts each).
    q2: kB of KV that a token of DeepSeek-V3 takes over all 8 GPUs of a tensor parallel group together, in bf16.
    q3: how many times the KV of tensor parallelism fits with data parallel attention, DeepSeek-V3 on 8 H200.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        slips = {
            1.0: "4 tokens × 2 experts is 8, but some of them choose the same expert",
            0.25: "that's for one token",
        }
        return (near(answer, expected(8, 2, 4), "share of the experts", slips, percent=True),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        once = find_model("deepseek-v3").kv_bytes_per_token("bfloat16") / 1e3
        return (near(answer, 8 * once, "kB per token", {once: "that's one copy, and every GPU keeps one"}),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        sliced, parallel, striped = room().values()
        slips = {
            striped
            / sliced: "you left out that the attention weights are copied to every GPU and take some of the room"
        }
        return (near(answer, parallel / sliced, "times the KV", slips, 0.08),)

    questions = {
        "q1": Question(
            "Mixtral, 2 of 8 experts: what share of a layer's experts do 4 tokens read, if all are equally likely?",
            "0 to 1",
        ),
        "q2": Question(
            "DeepSeek-V3, tensor parallel on 8 GPUs: how much KV does a token take in bf16, on all GPUs together?", "kB"
        ),
        "q3": Question(
            "DeepSeek-V3 on 8 H200: how many times as much KV fits with data parallel attention as with tensor "
            "parallelism?",
            "times",
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)

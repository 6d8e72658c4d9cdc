"""The check of lesson 06. Keys come from the steps that are passed in, from shapes, and from data sheets."""

from collections.abc import Sequence

from course.grading import Checks, Criterion, choice, close_to, near
from course.lab import simulated_70b
from course.lab.model_shape import LLAMA_13B, LLAMA_70B
from course.lab.roof import Roof, on_paper
from course.lab.style import number, seconds
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06.run import Dot

SLO, CONTEXT = 0.03, 1024
LONG_CONTEXT = 8192
NEVER = "never"


def checks(sweep: Sequence[Dot], roof: Roof) -> Checks:
    """Questions about the floor of a step, the crossover, and the batch that an SLO allows.

    q1: milliseconds that a decode step of Llama-3-70B (bf16, four H100s, one request, no context) takes at least.
    q2: tokens of context at which Llama-2-13B's KV is as many bytes as its weights.
    q3: what a step of the largest batch of the sweep takes longer for here: "reading" or "multiplying".
    q4: the largest batch of Llama-3-70B (four H100s, vLLM 0.19, contexts of 1024) that keeps an ITL of 30 ms.
    q5: the batch from which Llama-3-70B with contexts of 8192 tokens waits for arithmetic on H100s, or "never".
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        floor = 1e3 * on_paper(gpus=4).reading(LLAMA_70B.weight_bytes)
        slips = {
            4 * floor: "that is for one H100: four read their quarters at the same time",
            floor / 2: "that is for one byte a weight: bf16 has two",
            2 * floor: "that is for four bytes a weight: bf16 has two",
        }
        return (near(answer, floor, "floor, ms", slips, 0.08),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = LLAMA_13B.crossover_tokens
        slips = {
            2 * key: "a factor of two off: each token leaves a key and a value",
            key / 2: "a factor of two off: both weights and KV have two bytes a number",
            LLAMA_70B.crossover_tokens: "that is Llama-3-70B's, whose eight query heads share one key and value",
        }
        return (near(answer, key, "crossover, tokens", slips, 0.08),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        last = sweep[-1]
        times = {"reading": roof.reading(last.bytes), "multiplying": roof.multiplying(last.flops)}
        told = {name: f"at batch {last.batch}, {name} takes at least {seconds(s)} here" for name, s in times.items()}
        return choice(answer, max(times, key=times.get), told)

    def q4(answer: object) -> tuple[Criterion, ...]:
        keys = (largest(simulated_70b.TODAY), largest(simulated.NO_GRAPHS))
        slips = {keys[1]: "that's without CUDA graphs"}
        return (near(answer, keys[0], "largest batch", slips, 0.1),)

    def q5(answer: object) -> tuple[Criterion, ...]:
        sheet = on_paper()
        knee, limit = sheet.knee(LLAMA_70B, LONG_CONTEXT), LLAMA_70B.highest_intensity(LONG_CONTEXT)
        ends = f"{number(limit)} FLOP per byte; the roof bends at {number(sheet.ridge)}"
        told = f"no batch of such contexts gets beyond {ends}"
        if knee is not None:
            return (close_to(answer, knee, "batch"),)
        said = str(answer).strip().lower()
        if said != NEVER:
            float(said)  # a batch, or nothing that can be read
            told += ". Batching helps with the weights, which all requests share; no two requests share their KV"
        return (Criterion("batch", float(said == NEVER), 1, told),)

    def largest(stack: str) -> int:
        return simulated.within(simulated.stack(stack), CONTEXT, SLO)

    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5})

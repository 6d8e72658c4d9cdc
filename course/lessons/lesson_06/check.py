"""The check of lesson 06. Keys come from the steps that are passed in, from shapes, and from data sheets."""

from collections.abc import Sequence

from course.grading import Checks, Criterion, Question, choice, close_to, near
from course.lab import simulated_70b
from course.lab.model_shape import LLAMA_13B, LLAMA_70B
from course.lab.roof import Roof, on_paper
from course.lab.style import number, seconds
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06.run import Dot

SLO, CONTEXT = 0.03, 1024
NEVER = "never"


def as_pair(answer: object) -> tuple[float | str, float | str]:
    """Two batches, each a number or "never"; as a pair, or in one text.

    Raises:
        ValueError: it is something else.
    """
    parts = answer.split(",") if isinstance(answer, str) else answer
    if not isinstance(parts, (tuple, list)) or len(parts) != 2:
        raise ValueError('give two answers: the linear layers, then attention, each a batch or "never"')
    first, second = (NEVER if str(each).strip(" '\"").lower() == NEVER else float(each) for each in parts)
    return first, second


def checks(dots: Sequence[Dot], roof: Roof) -> Checks:
    """Questions about the floor of a step, the crossover, and the batch that an SLO allows.

    q1: milliseconds that a decode step of Llama-3-70B (bf16, four H100s, one request, no context) takes at least.
    q2: tokens of context at which Llama-2-13B's KV is as many bytes as its weights.
    q3: what a step of the largest of these batches takes longer for here: "reading" or "multiplying".
    q4: the largest batch of Llama-3-70B (four H100s, vLLM 0.19, contexts of 1024) that keeps an ITL of 30 ms.
    q5: the batches from which Llama-3-70B's linear layers, and its attention, wait for arithmetic on H100s: a pair,
        each a number or "never".
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        floor = 1e3 * on_paper(gpus=4).reading(LLAMA_70B.weight_bytes)
        slips = {
            4 * floor: "that's for one H100; four read a quarter each, at the same time",
            floor / 2: "that's at one byte per weight; bf16 takes two",
            2 * floor: "that's at four bytes per weight; bf16 takes two",
        }
        return (near(answer, floor, "floor, ms", slips, 0.08),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = LLAMA_13B.crossover_tokens
        slips = {
            2 * key: "a factor of two off: each token leaves a key and a value",
            key / 2: "a factor of two off: both weights and KV take two bytes a number",
            LLAMA_70B.crossover_tokens: "that's Llama-3-70B's, where eight query heads share one key and value",
        }
        return (near(answer, key, "crossover, tokens", slips, 0.08),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        last = dots[-1]
        times = {"reading": roof.reading(last.bytes), "multiplying": roof.multiplying(last.flops)}
        told = {name: f"at batch {last.batch}, {name} takes at least {seconds(s)} here" for name, s in times.items()}
        return choice(answer, max(times, key=times.get), told)

    def q4(answer: object) -> tuple[Criterion, ...]:
        keys = (largest(simulated_70b.TODAY), largest(simulated.NO_GRAPHS))
        slips = {keys[1]: "that's without CUDA graphs"}
        return (near(answer, keys[0], "largest batch", slips, 0.1),)

    def q5(answer: object) -> tuple[Criterion, ...]:
        linear, attention = as_pair(answer)
        sheet = on_paper()
        knee, scores = sheet.knee(LLAMA_70B), LLAMA_70B.attention_intensity
        shared = f"the weights are shared, so {number(knee)} requests do as many operations per byte as the card can"
        what, bend = "linear layers", number(sheet.ridge)
        first = Criterion(what, 0, 1, "", shared) if linear == NEVER else close_to(linear, knee, what, 0.15)
        told = f"requests don't share their KV, so it's {number(scores)} FLOP per byte at any batch and context, and "
        told += f"the roof bends at {bend}"
        return first, Criterion("attention", float((attention == NEVER) == (scores < sheet.ridge)), 1, "", told)

    def largest(stack: str) -> int:
        return simulated.within(simulated.stack(stack), CONTEXT, SLO)

    questions = {
        "q1": Question(
            "Llama-3-70B in bf16 on four H100s, one request, no context yet: by the data sheet, how long "
            "does a step take at least?",
            "ms",
        ),
        "q2": Question(
            "At how much context, in all, does Llama-2-13B's KV take as many bytes as its weights? (Both bf16.)",
            "tokens",
        ),
        "q3": Question(
            "At the largest batch of the bet, which clock runs longer here?", options=("reading", "multiplying")
        ),
        "q4": Question(
            "Llama-3-70B on four H100s, vLLM 0.19, contexts of 1,024: what's the largest batch with an ITL of at most "
            "30 ms?",
            "requests",
        ),
        "q5": Question(
            "Llama-3-70B in bf16 on H100s, contexts of 8,192 tokens: from what batch on do the linear "
            "layers wait for arithmetic, and from what batch on does attention? Two answers, each a "
            'number or "never".',
            many=True,
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5}, questions)

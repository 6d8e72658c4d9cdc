"""The check of lesson 09. Keys come from shapes, from the runs that are passed in, and from arithmetic."""

from course.grading import Checks, Criterion, Question, choice, near
from course.lab import matrix_zeros
from course.lab.matrix_rounding import GRID_BITS
from course.lab.model_shape import LLAMA_70B
from course.lab.style import with_minus
from course.lessons.lesson_09 import run
from course.lessons.lesson_09.run import PLAIN
from course.measure.quality import QualityLimits

GROUP, BITS = 64, 4
PASSING = ("pass", "fail")
HAIR = 0.05
"""A batch whose factor is so near to 1 is an answer to q3, too: another run would decide."""
HALF = 50
"""Percent of the step that reading weights takes, in q2."""


def checks(found: run.Sweep, scores: run.Scores) -> Checks:
    """Questions about bytes, Amdahl's law, limits, and zeros.

    q1: bits a weight takes in 4 bits with groups of 64, grids included.
    q2: by what factor a step gets shorter at best when weights go from 16 to 8 bits, and reading them was half of it.
    q3: the smallest batch of the sweep at which int8 is no faster than 16 bits here, or "never".
    q4: does int4 with groups of 64 "pass" or "fail" the usual limits on this lab's text?
    q5: percent of zeros above which numbers with 4-byte columns are fewer bytes than a dense 16-bit matrix.
    q6: tokens of context, of all requests together, at which Llama-3-70B reads as much 16-bit KV as int8 weights.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        slips = {
            float(BITS): "that leaves out the grid, a scale and an offset for each group",
            BITS + GRID_BITS / 2 / GROUP: "one of the two is missing; there's a scale and an offset, 16 bits each",
            BITS + GRID_BITS / 32: "that's for groups of 32",
        }
        return (near(answer, BITS + GRID_BITS / GROUP, "bits a weight", slips, 0.01),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        share = HALF / 100
        slips = {
            2.0: "that's the gain on weight reads alone; the other half of the step stays as it is (Amdahl's law)",
            1 - share / 2: "that's the new step as a share of the old one; invert it",
        }
        return (near(answer, 1 / (1 - share + share / 2), "factor", slips, 0.02),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        batches = [dot.batch for dot in found["int8"]]
        key = run.break_even(found, "int8")
        said = f"{answer:g}" if isinstance(answer, float) else str(answer).strip().lower()
        if said not in ("never", *map(str, batches)):
            raise ValueError(f"choose one of the sweep: {', '.join(map(str, batches))}, or 'never'")
        right = said == ("never" if key is None else str(key))
        close = [str(b) for i, b in enumerate(batches) if abs(run.speedup(found, "int8", i) - 1) <= HAIR]
        told = ", ".join(f"batch {b}: ×{run.speedup(found, 'int8', i):.2f}" for i, b in enumerate(batches))
        return (
            Criterion("batch", float(right or said in close), 1, "", f"decode speed of int8 over {PLAIN} here: {told}"),
        )

    def q4(answer: object) -> tuple[Criterion, ...]:
        said = run.verdict(scores, "int4 g64", QualityLimits())
        rise = with_minus(f"{run.rise(scores, 'int4 g64'):+.1%}")
        told = f"perplexity {rise}; broken: {'; '.join(said.broken) or 'none'}"
        return choice(answer, PASSING[bool(said.broken)], dict.fromkeys(PASSING, told))

    def q5(answer: object) -> tuple[Criterion, ...]:
        key = 100 * matrix_zeros.break_even_zeros()
        slips = {
            100 - key: "that's the share of numbers that are left; the question asks for the zeros",
            key / 100: "in percent, please",
            100
            * (
                1 - matrix_zeros.NUMBER_BYTES / matrix_zeros.INDEX_BYTES
            ): "each number comes with its column index; add the two",
        }
        return (near(answer, key, "zeros, %", slips, 0.03),)

    def q6(answer: object) -> tuple[Criterion, ...]:
        halved = LLAMA_70B.stored_as(weight_dtype="int8")
        slips = {
            LLAMA_70B.crossover_tokens: "that's with 16-bit weights; in int8 they take half the bytes",
            2 * LLAMA_70B.crossover_tokens: "it's the other way round: KV overtakes smaller weights sooner",
        }
        return (near(answer, halved.crossover_tokens, "tokens", slips, 0.05),)

    questions = {
        "q1": Question(
            "4 bits in groups of 64, a scale and an offset of 16 bits each: how many bits per weight is that in all?",
            "bits",
        ),
        "q2": Question(
            "Reading 16-bit weights is half of a step. How many times as fast is decode at best in 8 bits?",
            "times",
        ),
        "q3": Question("At which batch of the sweep is int8 first no faster than 16 bits here?", 'a batch, or "never"'),
        "q4": Question("Does int4 in groups of 64 pass or fail the usual limits on this lab's text?", options=PASSING),
        "q5": Question(
            "Pruned anywhere, 16-bit numbers with 4-byte column indices: above what share of zeros is the sparse "
            "matrix smaller than the dense one?",
            "%",
        ),
        "q6": Question(
            "Llama-3-70B (80 layers, 8 KV heads of 128 numbers) in int8, KV in 16 bits: at how much "
            "context, in all, does KV take as many bytes as the weights?",
            "tokens",
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q6": q6}, questions)

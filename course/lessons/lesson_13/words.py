"""What the runs of lesson 13 showed: its verdict on its claim."""

import math
from collections.abc import Callable

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lessons.lesson_13.run import FULL, OUTPUT, ServerDemand, experiment
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model

IMPOSSIBLE = 1.5
"""Asked for so many times its capacity, no server answers in 3 s for longer than a moment."""


def a17(fit: ServerDemand) -> Claim:
    """Do the dump's numbers belong together, and is p99 x tokens the time of an answer?"""
    sums = say("A17.product_misleads" if fit.product / fit.decode_p99 > 1.2 else "A17.product_is_about_right", fit=fit)
    verdict = "holds" if fit.servers < IMPOSSIBLE else "wrong"
    told = {"full": FULL, "gaps": OUTPUT - 1, "output": OUTPUT, "ceil": math.ceil(fit.servers)}
    return conclude("A17", verdict, fit=fit, sums=sums, **told)


def three_numbers() -> Html:
    """Three numbers that most drills begin with."""
    card, model = find_hardware("h100-sxm"), find_model("llama-3-70b")
    token, knee = model.kv_bytes_per_token("bfloat16"), card.flops["bfloat16"] / card.bandwidth
    return know_cold(
        (f"{2 * model.layer_params / 1e9:.0f} GFLOP", "for a token of a 70B, prefilled or decoded", "2 per weight"),
        (f"{token / 1e3:.0f} kB", "of KV for each of its tokens, in bf16", "2 × 80 × 8 × 128 × 2 B"),
        (f"{knee:.0f} tokens", "in a step: below that an H100 waits for bf16 weights", "989 TFLOP/s over 3.35 TB/s"),
    )


EXPERIMENT = ("lab/visits.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A17": lambda lab: a17(experiment(lab))}

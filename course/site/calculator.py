"""The simulator's prices as numbers for a page: static/calculator.js computes with them what roofline.py computes here.

What the page leaves out: pipeline stages, expert parallelism, adapters and queues. `minillm simulate` has all of them.
"""

import itertools
import math
from typing import Any

from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement, kv_blocks_that_fit
from course.simulator.cost.profile import find_profile
from course.simulator.cost.roofline import StepTimeModel
from course.simulator.deployment import BLOCK_SIZE
from minillm.core.errors import MinillmError

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "qwen3-32b", "qwen3-30b-a3b")
CARDS = ("h100-sxm", "h200-sxm", "b200", "a100-80gb", "l4")
GPUS = (1, 2, 4, 8)
WEIGHTS, KV = ("bfloat16", "fp8", "int8", "int4"), ("bfloat16", "fp8")
OF_MODEL = (
    *("token_s", "logit_s", "weights_s", "idle_s", "pair_s", "prompt_pair_s", "context_s", "dequant_s"),
    *("idle_dequant_s", "at_once_s", "at_once_token_s", "hops_s", "hops_token_s", "gaps_s", "host_s", "skip"),
)
"""What a StepTimeModel has that the page needs."""
OF_CONSTANTS = ("half_tokens", "serial", "prefill_s", "prefill_host_s", "step_s", "request_s")


def stack() -> str:
    """The serving software that the prices are of, by its version."""
    return str(find_profile(CARDS[0]).provenance["stack"])


def exported() -> dict[str, Any]:
    """Everything that the page can be asked, by "model card gpus weights kv"; what does not fit is not there."""
    deployments = itertools.product(MODELS, CARDS, GPUS, WEIGHTS, KV)
    found = {" ".join(map(str, each)): prices for each in deployments if (prices := priced(*each)) is not None}
    menus = {"models": MODELS, "cards": CARDS, "gpus": GPUS, "weights": WEIGHTS, "kv": KV}
    return {**menus, "prices": found}


def priced(model: str, card: str, gpus: int, weights: str, kv: str) -> dict[str, float | None] | None:
    """Coefficients of one deployment, in seconds, bytes and tokens; None = it does not fit, or has no such numbers."""
    cost, profile = find_model(model), find_profile(card)
    placement = Placement(tp=gpus, weight_dtype=weights, kv_dtype=kv)
    try:
        placement.check(cost)
        steps = StepTimeModel(cost, profile.hardware, placement, profile.constants)
        blocks = kv_blocks_that_fit(cost, profile.hardware, placement, BLOCK_SIZE)
    except MinillmError:
        return None
    numbers = {name: getattr(steps, name) for name in OF_MODEL} | {
        name: getattr(steps.constants, name) for name in OF_CONSTANTS
    }
    sizes = {
        "kv_bytes": cost.kv_bytes_per_token(kv),
        "weight_bytes": placement.weight_bytes(cost),
        "kv_tokens": blocks * BLOCK_SIZE,
    }
    return {
        name: float(f"{value:.7g}") if math.isfinite(value) else None for name, value in {**numbers, **sizes}.items()
    }

"""The simulator's prices as numbers for a page: envelope.js computes with them what roofline.py computes here.

What the page leaves out: pipeline stages, expert parallelism, adapters and queues. `minillm simulate` has all of them.
"""

import math

from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.roofline import StepTimeModel

OF_MODEL = (
    *("token_s", "logit_s", "weights_s", "idle_s", "pair_s", "prompt_pair_s", "context_s", "dequant_s"),
    *("idle_dequant_s", "gaps_s", "host_s", "skip"),
)
"""What a StepTimeModel has that the page needs."""
OF_CONSTANTS = ("half_tokens", "serial", "prefill_s", "prefill_host_s", "step_s", "request_s")

Prices = dict[str, float | list[list[float]] | None]


def coefficients(steps: StepTimeModel, model: PricedModel, placement: Placement, kv_tokens: int) -> Prices:
    """What prices one deployment's steps, in seconds, bytes and tokens; None = infinite. `reduces` has the
    ways that all of a step's all-reduces can go: seconds, and seconds per token.

    Args:
        kv_tokens: that its KV cache holds.
    """
    numbers = {name: getattr(steps, name) for name in OF_MODEL} | {
        name: getattr(steps.constants, name) for name in OF_CONSTANTS
    }
    sizes = {
        "kv_bytes": model.kv_bytes_per_token(placement.kv_dtype),
        "weight_bytes": placement.weight_bytes(model),
        "kv_tokens": kv_tokens,
    }
    prices: Prices = {
        name: _shown(value) if math.isfinite(value) else None for name, value in {**numbers, **sizes}.items()
    }
    ways = [(way.latency_s, way.token_s) for way in steps.reduces]
    return prices | {"reduces": [[*map(_shown, way)] for way in ways if all(map(math.isfinite, way))]}


def _shown(value: float) -> float:
    return float(f"{value:.7g}")

"""The site's calculator: the worksheet (course/lab/sheet.py) for several models and cards, without a simulation."""

import itertools

from course.lab.sheet import Choice, Number, SheetSpec, price_of_card
from course.lab.view.prices import Prices, coefficients
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


def stack() -> str:
    """The serving software that the prices are of, by its version."""
    return str(find_profile(CARDS[0]).provenance["stack"])


def exported() -> SheetSpec:
    """Everything that the page can be asked."""
    choices = (
        Choice("model", "model", "Deployment", MODELS, "llama-3.1-70b"),
        Choice("card", "card", "Deployment", CARDS, "h100-sxm"),
        Choice("gpus", "GPUs in a replica", "Deployment", tuple(map(str, GPUS)), "4"),
        Choice("weights", "weights", "Deployment", WEIGHTS, "bfloat16"),
        Choice("kv", "KV cache", "Deployment", KV, "bfloat16"),
    )
    numbers = (
        Number("qps", "requests a second", "Traffic and SLO", "/s", 0.1, 1000, 20),
        Number("prompt", "prompt", "Traffic and SLO", "tokens", 20, 100_000, 1500, whole=True),
        Number("output", "output", "Traffic and SLO", "tokens", 1, 10_000, 150, whole=True),
        Number("ttft", "TTFT at most", "Traffic and SLO", "s", 0.1, 10, 1),
        Number("itl", "TPOT at most", "Traffic and SLO", "ms", 5, 500, 50),
        Number("headroom", "headroom", "Deployment", "%", 0, 60, 33, whole=True),
        Number("price", "own price (0: list price)", "Deployment", "$/h", 0, 12, 0),
    )
    found = {each: priced(*each) for each in itertools.product(MODELS, CARDS, GPUS, WEIGHTS, KV)}
    prices = {" ".join(map(str, each)): prices for each, prices in found.items() if prices is not None}
    dollars = {card: price_of_card(card) for card in CARDS}
    return SheetSpec((*choices, *numbers), ("model", "card", "gpus", "weights", "kv"), prices, dollars)


def priced(model: str, card: str, gpus: int, weights: str, kv: str) -> Prices | None:
    """Coefficients of one deployment; None = it does not fit, or the card has no such arithmetic."""
    cost, profile = find_model(model), find_profile(card)
    placement = Placement(tp=gpus, weight_dtype=weights, kv_dtype=kv)
    try:
        placement.check(cost)
        steps = StepTimeModel(cost, profile.hardware, placement, profile.constants)
        blocks = kv_blocks_that_fit(cost, profile.hardware, placement, BLOCK_SIZE)
    except MinillmError:
        return None
    return coefficients(steps, cost, placement, blocks * BLOCK_SIZE)

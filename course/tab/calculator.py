"""The site's calculator: the worksheet on paper (course/lab/paper.py) for several models and cards."""

from dataclasses import asdict
from typing import Any

from course.lab.paper import Choice, Number, SheetSpec, Values
from course.simulator.cost.profile import find_profile
from course.simulator.deployment import Deployment

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "qwen3-32b", "qwen3-30b-a3b")
CARDS = ("h100-sxm", "h200-sxm", "b200", "a100-80gb", "l4")
GPUS = (1, 2, 4, 8)
WEIGHTS, KV = ("bfloat16", "fp8", "int8", "int4"), ("bfloat16", "fp8")


def stack() -> str:
    """The serving software that the prices are of, by its version."""
    return str(find_profile(CARDS[0]).provenance["stack"])


def sheet() -> SheetSpec:
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
    return SheetSpec((*choices, *numbers), replica, "calculator.answer")


def replica(asked: Values) -> Deployment:
    """What was chosen. Raises a MinillmError: the model can't be placed so, or the card lacks such arithmetic."""
    dtypes = {"weight_dtype": asked["weights"], "kv_dtype": asked["kv"]}
    return Deployment.of(asked["model"], asked["card"], tp=int(asked["gpus"]), **dtypes)


def answer(asked: Values) -> dict[str, Any]:
    """What a page shows of it."""
    return asdict(sheet().answer(asked))

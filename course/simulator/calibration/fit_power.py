"""Fits what cards draw (cost/power.py) to the ML.ENERGY benchmark's measurements.

git clone https://github.com/ml-energy/leaderboard
python -m course.simulator.calibration.fit_power leaderboard/public/data/models

Each measurement is a server's steady state: requests at a time, output tokens per second, average watts. From these and
the model's sizes follow FLOP/s and bytes/s. Lengths of prompts aren't published: PROMPT is what makes a mean step as
much longer than the median one as it was. Constants are fitted by least squares of the relative error; the error of
each model is that of a fit without it. Dense models and mixtures have constants of their own: a mixture uses less of
both peaks and draws as much, since its many small products keep the chip as busy.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from statistics import fmean, median
from typing import Any

from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.models import PricedModel, find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.power import FILE, Power, UsedShares, shares_used
from course.simulator.errors import RecordingError
from minillm.observe.percentiles import percentile

CARDS = {"H100": "h100-sxm", "B200": "b200"}
IDLE = {"h100-sxm": 110.0, "b200": 150.0}
"""Watts with the weights in memory and nothing to do. H100: 74 W without a program (nvidia-smi in vLLM's issue 27508),
and 26 to 50 W more once one has the card open, however much of its memory it takes (Vadari 2026, arXiv 2605.23918).
B200: the same share of its limit, a guess; the fit changes by less than 1 point between 75 and 200 W."""
TASKS = ("lm-arena-chat", "gpqa")
PROMPT = 250
"""Tokens."""
DTYPES = {"bfloat16": "bfloat16", "fp8": "fp8", "mxfp4": "fp4"}
SHAPES = {
    "llama-3.1-8b": "llama-3.1-8b",
    "llama-3.1-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "gpt-oss-120b": "gpt-oss-120b",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
}
"""Packaged shapes by what a model's name holds."""
SHAPE_FILES = FILE.parent / "shapes"


@dataclass(frozen=True, slots=True)
class PowerReading:
    """One measurement."""

    model: str
    kind: str
    """dense or moe."""
    card: str
    shares: UsedShares
    watts: float
    """Mean watts of one accelerator."""


def read_draws(folder: Path) -> list[PowerReading]:
    """What can be used of ML.ENERGY's files.

    Raises:
        RecordingError: there are none in the folder.
    """
    draws = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        known = content.get("task") in TASKS and content.get("weight_precision") in DTYPES
        if known and (model := shape_of(content["model_id"])) is not None:
            draws += [draw_of(content, row, model) for row in content["configurations"] if row["gpu_model"] in CARDS]
    if not draws:
        raise RecordingError(f"no measurements of models that are packaged in {folder}")
    return draws


def shape_of(model_id: str) -> PricedModel | None:
    """A packaged model of the same shape; None = there is none."""
    name = next((shape for part, shape in SHAPES.items() if part in model_id.lower()), None)
    if name is None:
        return None
    file = SHAPE_FILES / f"{name}.json"
    return find_model(str(file) if file.is_file() else name)


def draw_of(content: dict[str, Any], row: dict[str, Any], model: PricedModel) -> PowerReading:
    """The shares that a row's tokens per second come to."""
    card = find_hardware(CARDS[row["gpu_model"]])
    ways, gpus = row["parallelization"], row["num_gpus"]
    placement = Placement(gpus, DTYPES[content["weight_precision"]], dp=max(ways["data_parallel"], 1))
    rate, answer = row["output_throughput_tokens_per_sec"], row["avg_output_len"]
    shares = shares_used(
        model,
        card,
        placement,
        prompt_tokens=rate * PROMPT / answer,
        output_tokens=rate,
        prompt_pairs=rate / answer * PROMPT * (PROMPT + 1) / 2,
        decode_context=rate * (PROMPT + answer / 2),
        steps=rate / row["avg_batch_size"] * placement.dp,
        seconds=1.0,
    )
    kind = "moe" if model.num_experts else "dense"
    return PowerReading(content["model_id"], kind, card.name, shares, row["avg_power_watts"] / gpus)


def fit(draws: Sequence[PowerReading], hardware: Hardware) -> Power:
    """Least squares of the relative error: two unknowns, so the normal equations are solved by hand."""
    idle = IDLE[hardware.name]
    roots = [draw.shares.flops**0.5 / draw.watts for draw in draws]
    reads = [draw.shares.bytes / draw.watts for draw in draws]
    wanted = [1 - idle / draw.watts for draw in draws]
    aa, ab, bb = dot(roots, roots), dot(roots, reads), dot(reads, reads)
    ay, by = dot(roots, wanted), dot(reads, wanted)
    det = aa * bb - ab * ab
    assert hardware.watts is not None, "cards here have a limit"
    return Power(idle, (ay * bb - by * ab) / det, (by * aa - ay * ab) / det, hardware.watts, None)


def dot(ones: Sequence[float], others: Sequence[float]) -> float:
    """The sum of products."""
    return sum(map(mul, ones, others))


def ratios(power: Power, draws: Sequence[PowerReading]) -> list[float]:
    """Measured over predicted watts."""
    return [draw.watts / power.watts(draw.shares.flops, draw.shares.bytes) for draw in draws]


def left_out(draws: Sequence[PowerReading], hardware: Hardware) -> list[float]:
    """The same, each model by a fit to the others."""
    found = []
    for model in sorted({draw.model for draw in draws}):
        others = [draw for draw in draws if draw.model != model]
        found += ratios(fit(others, hardware), [draw for draw in draws if draw.model == model])
    return found


def fitted(draws: Sequence[PowerReading]) -> dict[str, dict[str, Any]]:
    """Constants and errors by card, as power.json has them."""
    cards: dict[str, dict[str, Any]] = {}
    for name in CARDS.values():
        hardware, cards[name] = find_hardware(name), {"idle": IDLE[name]}
        for kind in ("dense", "moe"):
            own = [draw for draw in draws if draw.card == name and draw.kind == kind]
            power, off = fit(own, hardware), left_out(own, hardware)
            constants = {"compute": round(power.compute, 1), "memory": round(power.memory, 1)}
            cards[name][kind] = {**constants, "band": band(off)}
            mape, middle = fmean(abs(1 / ratio - 1) for ratio in off), median(1 / ratio - 1 for ratio in off)
            print(f"{name} {kind}: {len(own)} points, watts off by {mape:.1%} (MAPE), median {middle:+.1%}")
    return cards


def band(off: Sequence[float]) -> dict[str, float | int]:
    """Where 8 of 10 measured values were, in percent above the forecast."""
    ordered = sorted(off)
    low, high = (round(100 * (percentile(ordered, rank) - 1), 1) for rank in (10, 90))
    return {"low": low, "high": high, "points": len(ordered)}


if __name__ == "__main__":
    content = json.loads(FILE.read_text(encoding="utf-8"))
    content["cards"] = fitted(read_draws(Path(sys.argv[1])))
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

"""How far forecasts were from measurements: from the measured points most like what is simulated.

bands.json has them by group (kind of model, accelerators of a rank, card, precision): for constants that were fitted to
an engine on a card, of points that those had not seen (`make fit POINTS=...` writes them), and for today's stack moved
to the card (`make bands POINTS=...`). A band is where 8 of 10 measured values were, in percent of the forecast.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import CURRENT_STACK, FAMILIES, Profile

FILE = Path(__file__).parent / "bands.json"
FITTED, TODAY = "engines", "today"
"""Whose forecasts: by constants of the engine, or by today's stack (vLLM 0.19) moved to the card."""
PRECISIONS = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp4": "fp4", "int8": "fp8", "int4": "fp4"}
"""Dtypes of weights, and the precision that was measured in their place."""
MEASURED_DTYPES = ("bfloat16", "float16", "fp8", "fp4")
FEWEST = 8
"""Points of a group that tell a band."""


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """Measured values beside their forecasts, in percent of these: a tenth of them was lower, half, nine tenths."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:+.0f} to {self.high:+.0f}% (median {self.median:+.0f}%)".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Band:
    """Measured points of one group."""

    points: int
    group: dict[str, Any]
    tpot: ErrorSpread
    ttft: ErrorSpread
    is_like: bool
    """The same kind of model, card, precision and number of accelerators."""

    @property
    def line(self) -> str:
        """One line for readers."""
        what = "{kind} models in {precision}, tp {tp}, on {card}".format(**self.group)
        near = "" if self.is_like else "None were like this; nearest, "
        told = f"{self.points} measured points ({what}): 8 in 10 TPOTs were {self.tpot} off the forecast"
        told += f", TTFTs {self.ttft}"
        return near + told if near else told[0].upper() + told[1:]

    def to_json(self) -> dict[str, Any]:
        metrics = (("tpot", self.tpot), ("ttft", self.ttft))
        percent = {name: [each.low, each.median, each.high] for name, each in metrics}
        return {"line": self.line, "points": self.points, "like": self.is_like, **self.group, **percent}


def band_of(profile: Profile, model: PricedModel, placement: Placement) -> Band | None:
    """The band of the nearest group; None for constants of one's own, which nobody has compared with these points."""
    told = profile.provenance
    stack = FITTED if "engine" in told else TODAY if told.get("hardware") == CURRENT_STACK else None
    if stack is None or not profile.hardware.is_gpu:
        return None
    groups = [row for row in json.loads(FILE.read_text())[stack] if row["n"] >= FEWEST]
    here = {
        "kind": "moe" if model.num_experts else "dense",
        "card": profile.hardware.name,
        "precision": PRECISIONS.get(placement.weight_dtype, "bf16"),
        "tp": placement.attention_tp,
    }
    if not groups:
        return None
    row = min(groups, key=lambda row: distance(row, here))
    group = {name: row[name] for name in here}
    is_like = group == here and placement.weight_dtype in MEASURED_DTYPES and placement.pp == 1
    return Band(row["n"], group, ErrorSpread(*row["tpot"]), ErrorSpread(*row["ttft"]), is_like)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How unlike two groups are: the kind of model counts most, then the chip, then precision, then how many."""
    family = next((each for each in FAMILIES if one["card"] in each), (one["card"],))
    card = 0.0 if one["card"] == other["card"] else 1.0 if other["card"] in family else 4.0
    return (
        8.0 * (one["kind"] != other["kind"])
        + card
        + 2.0 * (one["precision"] != other["precision"])
        + abs(math.log2(one["tp"] / other["tp"]))
    )

"""What an accelerator draws: idle watts, and more with the share of its arithmetic and of its memory that steps use.

    watts = min(limit, idle + compute sqrt(FLOP/s / peak) + memory (bytes/s / bandwidth))

The root is what fits: a chip's clocks and schedulers are awake long before all of its arithmetic is used, so the first
tenth of the FLOP/s costs far more than the last. Two constants per card and kind of model (power.json) are fitted to
the ML.ENERGY benchmark's measurements (Chung et al. 2025, "The ML.ENERGY Benchmark", github.com/ml-energy/leaderboard):
average watts of vLLM serving chats and reasoning, 8 to 2,048 requests at a time. `python -m
course.simulator.calibration.fit_power FOLDER` fits them, and says how far off they are on models that were left out:
dense ones 8.7% on H100 and 4.7% on B200, mixtures 19 and 16% (MAPE of watts).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from course.simulator.cost.hardware import Hardware
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.roofline import WIDENED
from minillm.model.arithmetic import share_woken

FILE = Path(__file__).parent / "power.json"


@dataclass(frozen=True, slots=True)
class PowerBand:
    """Measured watts beside their forecasts, in percent of these: a tenth was lower, nine tenths were."""

    low: float
    high: float
    points: int


@dataclass(frozen=True, slots=True)
class Power:
    """One card's draw, watts."""

    idle: float
    """With the weights in memory and no step running."""
    compute: float
    """Added at the peak of its FLOP/s."""
    memory: float
    """Added at the peak of its bandwidth."""
    limit: float
    band: PowerBand | None
    """From models that were left out of the fit; None = this is such a fit."""

    @classmethod
    def of(cls, hardware: Hardware, model: PricedModel) -> "Power | None":
        """The fitted constants of a card; None = nobody has published what it draws while it serves."""
        card = json.loads(FILE.read_text())["cards"].get(hardware.name)
        if card is None or hardware.watts is None:
            return None
        row = card["moe" if model.num_experts else "dense"]
        return cls(card["idle"], row["compute"], row["memory"], hardware.watts, PowerBand(**row["band"]))

    def watts(self, flops_share: float, bytes_share: float) -> float:
        """While steps run.

        Args:
            flops_share: of the peak FLOP/s in the dtype of the products.
            bytes_share: of the peak bandwidth.
        """
        return min(self.idle + self.compute * math.sqrt(flops_share) + self.memory * bytes_share, self.limit)


@dataclass(frozen=True, slots=True)
class UsedShares:
    """What of an accelerator's peaks is used while steps run."""

    flops: float
    bytes: float


def shares_used(
    model: PricedModel,
    hardware: Hardware,
    placement: Placement,
    *,
    prompt_tokens: float,
    output_tokens: float,
    prompt_pairs: float,
    decode_context: float,
    steps: float,
    seconds: float,
) -> UsedShares:
    """Shares used in a stretch of serving, over all accelerators of a replica.

    Args:
        prompt_tokens: computed, without those found in a cache.
        output_tokens: written.
        prompt_pairs: (query, key) pairs that prompts score.
        decode_context: tokens that decodes look back on, summed over output tokens.
        steps: of any kind.
        seconds: in steps.
    """
    dtype = placement.weight_dtype
    tokens = prompt_tokens + output_tokens
    pairs = model.scored(prompt_pairs, prompt_tokens) * model.query_size
    pairs += model.scored(decode_context, output_tokens) * model.decode_size
    flops = 2 * model.layer_params * tokens + 2 * model.head_params * output_tokens + 4 * model.layers * pairs
    woken = share_woken(model.skip, max(tokens / steps, 1.0))
    weights = model.read_bytes(dtype) + (model.read_bytes(dtype, math.inf) - model.read_bytes(dtype)) * woken
    kv_bytes = placement.kv_bytes_per_token(model) * placement.accelerators
    read = steps * weights + model.seen(decode_context, output_tokens, placement.kv_dtype) * kv_bytes
    peak = hardware.peak_flops("bfloat16" if dtype in WIDENED else dtype)
    of_all = seconds * placement.accelerators
    return UsedShares(flops / (peak * of_all), read / (hardware.bandwidth * of_all))

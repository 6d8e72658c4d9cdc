"""Weight formats in the roofline: the least time of a decode step, by batch, on a data sheet."""

from dataclasses import dataclass

from course.lab.explorer import Explorer, buttons, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.models import find_model

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MODEL, GPUS = find_model("llama-3-70b"), 4
FP4_OVER_FP8 = 2.0
"""Peak of NVFP4 over FP8 where the chip has it (NVIDIA, HGX B200 datasheet: 9 and 4.5 PFLOP/s dense)."""


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored, and in what they're multiplied."""

    bits: float
    """Stored, scales included."""
    multiplied: str
    """"bfloat16", "fp8" or "fp4"."""


FORMATS = {
    "bf16": WeightFormat(16, "bfloat16"),
    "FP8": WeightFormat(8, "fp8"),
    "W4A16 (int4, groups of 128)": WeightFormat(4 + 32 / 128, "bfloat16"),
    "NVFP4 (groups of 16)": WeightFormat(4 + 8 / 16, "fp4"),
}


def peak(on: Hardware, multiplied: str) -> float | None:
    """FLOP/s; None = the chip doesn't multiply in this format."""
    if multiplied == "fp4":
        return FP4_OVER_FP8 * on.flops["fp8"] if on.name.startswith("b200") else None
    return on.flops.get(multiplied)


def least_s(on: Hardware, kind: WeightFormat, batch: int) -> float | None:
    """Seconds of a decode step: its weights read once, or its products, whichever takes longer. No KV, no overhead."""
    flops = peak(on, kind.multiplied)
    weights = MODEL.layer_params + MODEL.head_params
    if flops is None:
        return None
    return max(weights * kind.bits / 8 / (GPUS * on.bandwidth), 2 * weights * batch / (GPUS * flops))


def draw(card: str, batch: int) -> Picture:
    """A curve for each format that the card multiplies."""
    on = find_hardware(card)
    kinds = {name: kind for name, kind in FORMATS.items() if least_s(on, kind, 1) is not None}
    curves = [
        Curve(name, BATCHES, [1e3 * (least_s(on, kind, b) or 0) for b in BATCHES]) for name, kind in kinds.items()
    ]
    here = ", ".join(f"{name} {1e3 * (least_s(on, kind, batch) or 0):.1f} ms" for name, kind in kinds.items())
    axes = Axis("batch, requests", log=True), Axis("decode step, ms at least", log=True)
    title = f"Llama-3 70B on {GPUS} {card}: when do fewer bits stop paying?"
    return draw_chart(title, curves, *axes, [Mark(f"batch {batch}", x=batch)], description=here)


def explorer() -> Explorer:
    return Explorer(
        draw, card=buttons("card", ["h100-sxm", "b200"], "h100-sxm"), batch=choices("batch", list(BATCHES), 64)
    )

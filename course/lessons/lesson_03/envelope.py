"""TTFT on an envelope: 2 P n over the FLOP/s that the GPUs really deliver, beside the simulator's price."""

from course.lab import simulated_70b
from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.svg import Picture
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MODEL = find_model("llama-3-70b")


def seconds_of(tokens: int, gpus: int, mfu: float, card: str = "h100-sxm", attention: bool = True) -> float:
    """Least prefill time of one prompt on an idle server.

    Args:
        mfu: share of the data sheet's FLOP/s that prefill reaches.
    """
    flops = 2 * MODEL.layer_params * tokens
    if attention:
        flops += 4 * MODEL.layers * MODEL.query_size * tokens**2 / 2
    return flops / (gpus * find_hardware(card).flops["bfloat16"] * mfu)


def draw(tokens: int, gpus: int, mfu: float) -> Picture:
    """The envelope with and without attention, and the simulator's price of the same prompt."""
    priced = [simulated_70b.deployment(tp=gpus).step_time().price(simulated_70b.prefill_work(n)).total for n in LENGTHS]
    whole = [1e3 * seconds_of(n, gpus, mfu) for n in LENGTHS]
    curves = [
        Curve("2 P n / (GPUs x FLOP/s x MFU), and attention", LENGTHS, whole),
        Curve("2 P n alone", LENGTHS, [1e3 * seconds_of(n, gpus, mfu, attention=False) for n in LENGTHS], "dashes"),
        Curve("simulated", LENGTHS, [1e3 * each for each in priced]),
    ]
    here = 1e3 * seconds_of(tokens, gpus, mfu)
    axes = Axis("prompt, tokens", log=True), Axis("TTFT on an idle server, ms", log=True)
    title = f"Llama-3 70B, {gpus} H100s: {tokens:,} tokens take {here:.0f} ms by this estimate"
    return draw_chart(title, curves, *axes, [Mark("", x=tokens, y=here)])


def explorer() -> Explorer:
    return Explorer(
        draw,
        tokens=choices("prompt, tokens", list(LENGTHS), 4096),
        gpus=choices("GPUs", [2, 4, 8], 4),
        mfu=slider("MFU", 0.2, 0.8, 0.5, 0.05),
    )

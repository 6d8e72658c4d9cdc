"""A sum for a napkin, one a day: a question of one minute, its answer, and how one gets there.

Figures of models and cards are the simulator's own; all others are drawn from a seed. Nothing is played.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from course.incidents.causes import Draw
from course.lab.style import number
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.models import PricedModel, find_model
from course.simulator.cost.placement import Placement

MODELS = ("llama-3.1-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-70b")
CARDS = ("h100-sxm", "a100-80gb", "l40s", "h200")
NEAR = 0.15
"""An answer so near is right: it's a napkin."""
GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Napkin:
    """One sum."""

    question: str
    unit: str
    value: float
    working: tuple[str, ...]

    def is_right(self, answer: float) -> bool:
        """Whether an answer is as near as a napkin gets."""
        return abs(answer - self.value) <= NEAR * abs(self.value)

    def told(self, answer: float | None = None) -> str:
        """The verdict on an answer, if there is one, and the working."""
        verdict = "" if answer is None else "Right. " if self.is_right(answer) else "Not quite. "
        return f"{verdict}It's {number(self.value)} {self.unit}.\n" + "\n".join(f"  {line}" for line in self.working)


def kv_bytes(draw: Draw) -> Napkin:
    name, model = _model(draw)
    context = draw.choice((4_000, 8_000, 16_000, 32_000))
    each = model.kv_bytes_per_token("bfloat16")
    value = each * context / GIGA
    return Napkin(
        f"{name} keeps {each / 1024:.0f} KiB of keys and values for each token, in 16 bits. How many GB for a "
        f"context of {context:,} tokens?",
        "GB",
        value,
        (f"{each:,} bytes a token x {context:,} tokens = {value:.2f}e9 bytes",),
    )


def decode_step(draw: Draw) -> Napkin:
    (name, model), (card, hardware) = _model(draw), _card(draw)
    weights = Placement().weight_bytes(model)
    value = 1e3 * weights / hardware.bandwidth
    return Napkin(
        f"{name} has {weights / GIGA:.0f} GB of weights in 16 bits. One card of type {card} reads {_rate(hardware)}. "
        "If one held it all: how long does a step at batch size 1 take, at the least?",
        "ms",
        value,
        (f"each step reads all weights once: {weights / GIGA:.0f} GB / {_rate(hardware)} = {value:.1f} ms",),
    )


def prefill(draw: Draw) -> Napkin:
    (name, model), (card, hardware) = _model(draw), _card(draw)
    tokens, share = draw.choice((1_000, 2_000, 4_000, 8_000)), draw.choice((0.4, 0.5, 0.6))
    params, peak = Placement().weight_bytes(model) / 2, hardware.peak_flops("bfloat16")
    value = 1e3 * 2 * params * tokens / (share * peak)
    return Napkin(
        f"{name} has {params / 1e9:.0f} billion weights. One card of type {card} does {peak / TERA:.0f} TFLOP/s in "
        f"16 bits on paper, and {share:.0%} of that in practice. How long does it take to prefill {tokens:,} tokens "
        "on one card?",
        "ms",
        value,
        (
            f"two operations a weight and token: 2 x {params / 1e9:.0f}e9 x {tokens:,} = "
            f"{2 * params * tokens / TERA:.0f} TFLOP",
            f"/ ({share} x {peak / TERA:.0f} TFLOP/s) = {value:.0f} ms",
        ),
    )


def in_flight(draw: Draw) -> Napkin:
    rate, ttft, gap = draw.choice((4, 8, 12, 20)), draw.choice((0.2, 0.5, 1.0)), draw.choice((20, 25, 40))
    tokens = draw.choice((150, 200, 300, 400))
    stay = ttft + tokens * gap / 1e3
    return Napkin(
        f"{rate} requests/s arrive. Each waits {ttft} s for its first token, and then gets {tokens} more, one every "
        f"{gap} ms. How many requests are in flight on average?",
        "requests",
        rate * stay,
        (
            f"each stays {ttft} s + {tokens} x {gap} ms = {stay:.1f} s",
            f"Little's law: {rate}/s x {stay:.1f} s = {rate * stay:.0f}",
        ),
    )


def that_fit(draw: Draw) -> Napkin:
    name, model = _model(draw)
    each, context = model.kv_bytes_per_token("bfloat16"), draw.choice((1_500, 3_000, 6_000))
    pool = draw.choice((20, 30, 40, 60))
    value = pool * GIGA / (each * context)
    return Napkin(
        f"{name} keeps {each / 1024:.0f} KiB of keys and values a token. How many requests of {context:,} tokens fit "
        f"into {pool} GB of KV memory?",
        "requests",
        value,
        (
            f"one request: {each / 1024:.0f} KiB x {context:,} = {each * context / GIGA:.2f} GB",
            f"{pool} GB / {each * context / GIGA:.2f} GB = {value:.0f}",
        ),
    )


def replicas(draw: Draw) -> Napkin:
    rate, tokens = draw.choice((20, 50, 80, 120)), draw.choice((1_500, 2_500, 4_000))
    can, load = draw.choice((20_000, 30_000, 50_000)), draw.choice((0.6, 0.7))
    value = rate * tokens / (can * load)
    return Napkin(
        f"{rate} requests/s of {tokens:,} prompt tokens each; a replica prefills {can:,} tokens/s, and is to be "
        f"{load:.0%} busy at most. How many replicas does prefill alone take?",
        "replicas",
        value,
        (
            f"{rate}/s x {tokens:,} = {rate * tokens:,} prompt tokens/s",
            f"/ ({can:,} x {load}) = {value:.1f}: order the next whole number",
        ),
    )


def price(draw: Draw) -> Napkin:
    card, hardware = _card(draw)
    speed, load = draw.choice((800, 1_500, 2_500)), draw.choice((0.4, 0.5, 0.8))
    rent = hardware.price_per_hour or 0.0
    value = rent / (3600 * speed * load) * 1e6
    return Napkin(
        f"One card of type {card} rents for ${rent:.2f} an hour and writes {speed:,} tokens/s when it's full. It's "
        f"full {load:.0%} of the time. What do a million tokens cost?",
        "dollars",
        value,
        (
            f"tokens an hour: 3600 x {speed:,} x {load} = {3600 * speed * load / 1e6:.2f} million",
            f"${rent:.2f} / {3600 * speed * load / 1e6:.2f} = ${value:.2f}",
        ),
    )


SUMS: tuple[Callable[[Draw], Napkin], ...] = (kv_bytes, decode_step, prefill, in_flight, that_fit, replicas, price)


def napkin_of(day: date) -> Napkin:
    """The sum of a day: the same for everyone."""
    draw = Draw(f"napkin {day}")
    return draw.choice(SUMS)(draw)


def _model(draw: Draw) -> tuple[str, PricedModel]:
    name = draw.choice(MODELS)
    return name, find_model(name)


def _card(draw: Draw) -> tuple[str, Hardware]:
    name = draw.choice(CARDS)
    return name, find_hardware(name)


def _rate(hardware: Hardware) -> str:
    return f"{hardware.bandwidth / TERA:.2f} TB/s"

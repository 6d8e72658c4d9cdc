"""Speculation at 70 billion weights: rounds priced by the simulator."""

from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.simulated_70b import OLD, TODAY
from course.lab.speculation_gain import speedup
from course.lab.svg import Picture
from course.simulator.cost.models import find_model
from course.simulator.cost.work import decode_work
from course.simulator.deployment import Deployment

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 1024, 4096)
DRAFT_MODEL = "llama-3.2-1b"
DRAFTERS = {"a 1B model": DRAFT_MODEL, "looked up, free": None}
ALPHA, K = 0.7, 4


@dataclass(frozen=True)
class RoundPrices:
    """Prices of one round at one batch, seconds."""

    plain: float
    verify: float
    draft: float
    """One guess."""

    @property
    def c(self) -> float:
        return self.draft / self.plain

    def gain(self, alpha: float, k: int) -> float:
        return speedup(alpha, k, self.c, self.verify / self.plain)


def price_round(on: Deployment, batch: int, context: int, k: int, draft_model: str | None) -> RoundPrices:
    """A verification of k guesses, and the guesses.

    Args:
        draft_model: by name, on the same GPUs; None = they cost nothing.
    """
    price, step = on.step_time().price, decode_work(batch, context)
    draft = 0.0 if draft_model is None else on.step_time(find_model(draft_model)).price(step).total
    return RoundPrices(price(step).total, price(decode_work(batch, context, k + 1)).total, draft)


MIXTURE, DENSE = "qwen3-30b-a3b", "qwen3-32b"
"""A mixture of experts and a dense model with about as many weights."""
PAIR_GPUS = 2


MTP_ALPHA, MTP_C = 0.85, 0.03
"""DeepSeek-V3's one extra token: the lower end of its published acceptance; a guess's bytes over a step's."""


def mixture_lab() -> Explorer:
    """What a verification costs by batch, and what drafts gain: dense, and where more tokens activate more experts."""
    return Explorer(
        draw_mixture,
        k=slider("k, tokens in a draft", 1, 8, K),
        alpha=slider("α, acceptance", 0.0, 1.0, ALPHA, 0.05),
        c=choices("c, the cost of a draft token in steps", [0.0, MTP_C, 0.1, 0.2], 0.0),
        context=choices("context of each, tokens", CONTEXTS, 1024),
    )


def draw_mixture(k: int, alpha: float, c: float, context: int) -> Picture:
    """Is checking free where a step waits for weights? In a mixture it reads more of them."""
    curves, told = [], []
    for name, model in (("Qwen3 32B, dense", DENSE), ("Qwen3 30B-A3B, mixture of experts", MIXTURE)):
        on = simulated_70b.deployment(model=model, tp=PAIR_GPUS)
        rounds = [price_round(on, batch, context, k, None) for batch in BATCHES]
        costs = [each.verify / each.plain for each in rounds]
        gains = [speedup(alpha, k, c, cost) for cost in costs]
        curves.append(Curve(name, BATCHES, gains))
        listed = ", ".join(f"{batch}: ×{cost:.2f}" for batch, cost in zip(BATCHES, costs))
        told.append(f"{name}: a verification in plain steps, by batch: {listed}")
    dense, mixture = (curve.ys for curve in curves)
    (least, at_least), (most, at_most) = (pick(zip(mixture, BATCHES)) for pick in (min, max))
    ends = f"least (×{least:.2f}) at batch {at_least}, most (×{most:.2f}) at {at_most}"
    return draw_chart(
        f"Drafts of {k}, α = {alpha:g}: the mixture gains {ends}",
        curves,
        Axis("batch, requests", log=True),
        Axis("speedup (×)", low=0, high=1.15 * max(*dense, *mixture)),
        [Mark("below: it loses", y=1.0)],
        description=". ".join(told) + ".",
    )


def load_lab() -> Explorer:
    """Speedup by batch, with sliders for all that it depends on."""
    return Explorer(
        lambda alpha, k, context, drafts, under: draw_load(
            simulated_70b.deployment(stack=under), alpha, k, context, DRAFTERS[drafts]
        ),
        alpha=slider("α, acceptance", 0.0, 1.0, ALPHA, 0.05),
        k=slider("k, tokens in a draft", 1, 8, K),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        drafts=buttons("drafts by", list(DRAFTERS)),
        under=buttons("serving stack", [TODAY, OLD], TODAY),
    )


def draw_load(on: Deployment, alpha: float, k: int, context: int, draft_model: str | None) -> Picture:
    """Does it still help when the server is full?"""
    room = simulated_70b.room_tokens(on) // (context + k + 1)
    batches = [batch for batch in BATCHES if batch <= room]
    rounds = [price_round(on, batch, context, k, draft_model) for batch in batches]
    gains = [each.gain(alpha, k) for each in rounds]
    told = ", ".join(
        f"batch {batch}: ×{gain:.2f} (a verification is {each.verify / each.plain:.2f} steps, a token {each.c:.2f})"
        for batch, gain, each in zip(batches, gains, rounds)
    )
    return draw_chart(
        f"70B on four H100s: ×{gains[0]:.2f} at batch {batches[0]}, ×{gains[-1]:.2f} at batch {batches[-1]}",
        [Curve("speedup", batches, gains)],
        Axis("batch, requests", log=True),
        Axis("speedup (×)", low=0, high=max(3.2, *gains) * 1.05),
        [Mark("below: it loses", y=1.0)],
        description=f"α = {alpha:g}, k = {k}, contexts of {context}. {told}. Room for {room} such requests.",
    )

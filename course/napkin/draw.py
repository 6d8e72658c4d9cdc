"""What templates draw from: models, machines, and shares that are usual."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from course.drills.amounts import BYTE_RATE, FLOPS, RATIO
from course.napkin.quantity import Quantity
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.models import PricedModel, find_model

T = TypeVar("T")

MACHINES: dict[str, tuple[int, ...]] = {
    "llama-3.1-8b": (1,),
    "qwen3-14b": (1, 2),
    "qwen3-32b": (2, 4),
    "llama-3.1-70b": (4, 8),
}
"""Dense models, and how many cards one replica has: enough for its weights in 16 bits, on each of CARDS."""
SPARSE_MACHINES: dict[str, tuple[int, ...]] = {"qwen3-30b-a3b": (1, 2), "qwen3-235b-a22b": (8,)}
"""The same of mixtures of experts."""
CARDS = ("h100-sxm", "a100-80gb", "h200", "b200")
FP8_CARDS = ("h100-sxm", "h200", "b200", "gb200", "mi300x", "l40s")
"""Cards that multiply in 8 bits."""
MFUS = (0.4, 0.5, 0.6)
"""Shares of a card's FLOP/s that prefill usually reaches."""


class Pick(Protocol):
    """Chooses one of the options of something that has a name."""

    def __call__(self, name: str, *options: T) -> T: ...


@dataclass(frozen=True)
class ModelOnCards:
    """A model on the cards of one replica."""

    name: str
    model: PricedModel
    card: str
    gpu: Hardware
    cards: int

    @property
    def told(self) -> str:
        return f"{self.cards} x {self.card}"

    @property
    def weights(self) -> Quantity:
        """Weights of all layers that a token goes through."""
        return Quantity(self.model.layer_params)

    @property
    def flops(self) -> Quantity:
        """FLOP/s of one card, in 16 bits."""
        return Quantity(self.gpu.peak_flops("bfloat16"), FLOPS)

    @property
    def bandwidth(self) -> Quantity:
        """Bytes/s that one card reads."""
        return Quantity(self.gpu.bandwidth, BYTE_RATE)


def pick_machine(pick: Pick, machines: dict[str, tuple[int, ...]]) -> ModelOnCards:
    """A model on cards that hold it."""
    name, card = pick("model", *machines), pick("card", *CARDS)
    return ModelOnCards(name, find_model(name), card, find_hardware(card), pick("cards", *machines[name]))


def pick_mfu(pick: Pick) -> Quantity:
    return Quantity(pick("mfu", *MFUS), RATIO)

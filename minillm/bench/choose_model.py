"""`minillm bench choose-model`: which model a GPU has room for, by arithmetic alone.

A GPU's memory holds weights, working memory, and, with what is left, the keys and values of all requests' tokens:

    tokens = (usable memory - weights - working memory) / KV bytes per token

A model that only just fits serves no requests: look at the tokens that are left, not at whether it loads.
"""

from dataclasses import dataclass
from typing import Any

import torch

from minillm.model.arithmetic import ModelCost, find_model
from minillm.model.checkpoints import SHAPES
from minillm.observe.tables import text_table
from minillm.simulate.cost.hardware import CATALOGUE, find_hardware
from minillm.simulate.cost.placement import USABLE_MEMORY, Placement, bytes_for_kv

WEIGHTS = ("bfloat16", "int8", "int4")
"""Widest first: the table names the first one that leaves room."""
SHORT = {"bfloat16": "bf16"}
KV_DTYPES = ("bfloat16", "int8")
CARDS_PER_TABLE = 5


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU and its memory in bytes."""

    name: str
    memory: float
    """Bytes that a program sees."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A model on a card, in the widest weights that leave room for `at_least` tokens."""

    weights: str
    tokens: int
    """That the KV cache has room for, in bfloat16, over all requests together."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model: what it takes, and what each card has room for."""

    model: str
    weight_bytes: dict[str, float]
    kv_bytes_per_1k: dict[str, int]
    """Of a thousand tokens."""
    fits: dict[str, Fit | None]
    """By card; None = not even in 4 bits."""


def cards_of(names: list[str]) -> list[Card]:
    """The named cards; without names the one at hand; without a GPU all that are known.

    Raises:
        UnknownHardwareError: there is no such card.
    """
    if names:
        return [Card(gpu.name, gpu.memory) for gpu in map(find_hardware, names)]
    if torch.cuda.is_available():
        return [Card(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])]
    return sorted((Card(gpu.name, gpu.memory) for gpu in CATALOGUE.values()), key=lambda card: (card.memory, card.name))


def run(names: list[str], at_least: int) -> dict[str, Any]:
    """Every packaged shape on every card.

    Args:
        names: of cards; see `cards_of`.
        at_least: tokens of KV cache that a card must have room for, or a model counts as too large.
    """
    cards = cards_of(names)
    models = sorted(((name, find_model(name)) for name in SHAPES), key=lambda item: item[1].stored_params)
    rows = [
        Row(
            name,
            {dtype: model.stored_bytes(dtype) for dtype in WEIGHTS},
            {dtype: 1000 * model.kv_bytes_per_token(dtype) for dtype in KV_DTYPES},
            {card.name: fit(model, card, at_least) for card in cards},
        )
        for name, model in models
    ]
    return {"at_least": at_least, "usable_memory": USABLE_MEMORY, "cards": cards, "results": rows}


def fit(model: ModelCost, card: Card, at_least: int) -> Fit | None:
    """The widest weights of the model that leave room for `at_least` tokens on the card; None = none do."""
    for weights in WEIGHTS:
        placement = Placement(weight_dtype=weights)
        tokens = int(bytes_for_kv(model, card.memory, placement) // placement.kv_bytes_per_token(model))
        if tokens >= at_least:
            return Fit(weights, tokens)
    return None


def table(report: dict[str, Any]) -> str:
    """What a model takes, and under it what each card has room for: `int4 40k` = in int4, with 40,000 tokens."""
    rows, cards = report["results"], report["cards"]
    weights = [[f"{row.weight_bytes[dtype] / 1e9:.1f}" for dtype in WEIGHTS] for row in rows]
    kv = [[f"{row.kv_bytes_per_1k[dtype] / 1e6:.0f}" for dtype in KV_DTYPES] for row in rows]
    columns = ("", *(f"{SHORT.get(dtype, dtype)}, GB" for dtype in WEIGHTS))
    columns = (*columns, *(f"KV of 1k in {SHORT.get(dtype, dtype)}, MB" for dtype in KV_DTYPES))
    lines = [
        text_table(columns, [[row.model, *first, *second] for row, first, second in zip(rows, weights, kv)]),
        "",
        f"The widest weights that leave room for {report['at_least']:,} tokens in a bfloat16 KV cache, and how many",
        f"tokens that room is for, for all requests together ({report['usable_memory']:.0%} of a card is counted on):",
    ]
    for start in range(0, len(cards), CARDS_PER_TABLE):
        part = cards[start : start + CARDS_PER_TABLE]
        cells = [["GiB seen", *(f"{card.memory / 2**30:.0f}" for card in part)]]
        cells += [[row.model, *(describe(row.fits[card.name]) for card in part)] for row in rows]
        lines += ["", text_table(("", *(card.name for card in part)), cells)]
    return "\n".join(lines)


def describe(fit: Fit | None) -> str:
    """`int4 40k`; `-` where nothing fits."""
    return "-" if fit is None else f"{SHORT.get(fit.weights, fit.weights)} {fit.tokens / 1000:,.0f}k"

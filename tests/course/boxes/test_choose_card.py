"""The tables of the guide to GPU boxes: what a model takes, and what a card has room for, by the simulator."""

import re
from pathlib import Path

from course.simulator.cost.hardware import CATALOGUE
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement, bytes_for_kv
from course.simulator.cost.sizes import ModelCost
from minillm.model.checkpoints import SHAPES

GUIDE = Path(__file__).parents[3] / "docs" / "gpu-box.md"
WEIGHTS = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}
"""Widest first: a table names the first one that leaves room."""
AT_LEAST = 8192


def widest(model: ModelCost, card: str) -> str:
    """`int4 28k`: the widest weights that leave room for AT_LEAST tokens; `-` where none do."""
    for name, dtype in WEIGHTS.items():
        placement = Placement(weight_dtype=dtype)
        room = bytes_for_kv(model, CATALOGUE[card].memory, placement)
        tokens = int(room // placement.kv_bytes_per_token(model))
        if tokens >= AT_LEAST:
            return f"{name} {tokens / 1000:,.0f}k"
    return "-"


def test_the_tables_are_what_the_arithmetic_says() -> None:
    tables = GUIDE.read_text().partition("## 7. What fits")[2].split("```")[1]
    lines = [re.split(r" {2,}", line.strip()) for line in tables.splitlines()]
    seen, cards = [], []
    for first, *cells in lines:
        if first in CATALOGUE:
            cards = [first, *cells]
        elif first == "GiB seen":
            assert cells == [f"{CATALOGUE[card].memory / 2**30:.0f}" for card in cards]
        elif first in SHAPES:
            model = find_model(first)
            kv = [f"{model.kv_bytes_per_token(dtype) / 1e3:.0f}" for dtype in ("bfloat16", "int8")]
            takes = [*(f"{model.stored_bytes(dtype) / 1e9:.1f}" for dtype in WEIGHTS.values()), *kv]
            assert cells == ([widest(model, card) for card in cards] if cards else takes), first
            seen += cards or ["takes"]
    assert sorted(seen) == sorted(["takes", *CATALOGUE] * len(SHAPES))

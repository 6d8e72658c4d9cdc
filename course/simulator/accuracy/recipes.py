"""What a row leaves out, from the recipes that InferenceX publishes: how many servers a pool has, and whether a model
drafts tokens for itself (multi-token prediction). `recipes.csv` holds configurations only, no measurement:
configs/nvidia-master.yaml and configs/deprecated of github.com/SemiAnalysisAI/InferenceX (Apache-2.0), as they were
between December 2025 and August 2026, and the recipes that those name, of github.com/NVIDIA/srt-slurm (Apache-2.0).
"""

import csv
import functools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from course.simulator.accuracy.points import Point

Key = tuple[str, str, str, str, int, int, int]
"""Model, card, precision, backend, isl, osl, concurrency."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Equal servers."""

    count: int
    gpus: int
    """GPUs of each server."""
    expert_groups: int
    """1: every accelerator has slices of all experts."""
    data_parallel: bool
    """Attention is not sliced: each accelerator has requests of its own."""


@dataclass(frozen=True, slots=True)
class RecipeLimits:
    """What a recipe lets the ranks of two pools hold. None: it doesn't say."""

    slots: int | None = None
    """Most requests at a time on a rank of the decode pool (TensorRT-LLM's `max_batch_size`; SGLang's
    `max-running-requests` over its ranks)."""
    kv_tokens: int | None = None
    """Most tokens in the KV cache of a rank of the decode pool (SGLang's `max-total-tokens`)."""
    budget: int | None = None
    """Most tokens in a step of a rank of the prefill pool (TensorRT-LLM's `max_num_tokens`; SGLang's
    `chunked-prefill-size` over its ranks)."""


NO_LIMITS = RecipeLimits()


@dataclass(frozen=True, slots=True)
class Recipe:
    """One deployment that is measured at this point."""

    version: str
    """The engine's name; "" where it isn't looked at."""
    drafts: bool
    prefill: Servers | None
    """None: not disaggregated."""
    decode: Servers
    limits: RecipeLimits = NO_LIMITS
    """Limits of the pools; none where the servers are not disaggregated."""


@functools.cache
def published() -> dict[Key, list[Recipe]]:
    """All recipes, by point."""
    recipes: defaultdict[Key, list[Recipe]] = defaultdict(list)
    with (Path(__file__).parent / "recipes.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            prefill = _servers(row["prefill"]) if row["prefill"] else None
            limits = RecipeLimits(_limit(row["slots"]), _limit(row["kv_tokens"]), _limit(row["chunk"]))
            recipe = Recipe(row["version"], row["drafts"] == "1", prefill, _servers(row["decode"]), limits)
            for concurrency in map(int, row["concurrency"].split()):
                lengths = int(row["isl"]), int(row["osl"])
                key = (row["model"], row["system"], row["precision"], row["backend"], *lengths, concurrency)
                recipes[key].append(recipe)
    return dict(recipes)


@functools.cache
def always_drafts(shape: str, backend: str, version: str) -> bool:
    """Whether the recipes for this version of an engine all draft, those for this model on one server."""
    drafts = {
        recipe.drafts
        for (model, _, _, engine, *_), recipes in published().items()
        for recipe in recipes
        if (model, engine, recipe.version) == (shape, backend, version) and recipe.prefill is None
    }
    return bool(version) and drafts == {True}


def _limit(text: str) -> int | None:
    return int(text) if text else None


def _servers(text: str) -> Servers:
    count, gpus, groups, data_parallel = map(int, text.split("/"))
    return Servers(count, gpus, groups, bool(data_parallel))


def recipes_of(point: Point, shape: str, card: str) -> list[Recipe]:
    """The recipes of a row's point.

    Args:
        shape: the model's short name.
    """
    lengths = point.isl, point.osl
    return published().get((shape, card, point.precision, point.backend, *lengths, point.concurrency or 0), [])

"""The constants, and what each is allowed to depend on.

A constant of an engine on a card is a product:

    what chips of this generation reach  x  what this backend makes of it  x  this version's factor

Dense models and mixtures of experts have a tree of their own each: an engine computes them with other kernels. Of each
level a constant has as many parameters as there are such things; those of levels below the first are factors.
All are fitted together, in logarithms, with a penalty on factors that are far from 1: data has to pay for them (ridge
regression; James and Stein 1961, and Efron and Morris 1975, say why estimates drawn towards their mean err less).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.rows import PlanRow
from course.simulator.cost.roofline import HIGHEST, Constants

CHIP, BACKEND, ENGINE = "chips", "backends", "engines"
LEVELS: dict[str, Callable[[PlanRow], tuple[str, ...]]] = {
    CHIP: lambda row: (row.generation,),
    BACKEND: lambda row: (row.generation, row.backend),
    ENGINE: lambda row: (row.engine,),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One constant: where it starts, how far each level may go from what is above it, and whom it concerns."""

    name: str
    start: float
    spread: dict[str, float]
    """By level: how far it may go, as a standard deviation of its logarithm. A level that isn't there has no factor."""
    lowest: float
    by_dtype: bool = False
    """Weights of each dtype have their own."""
    concerns: Callable[[PlanRow], bool] = lambda row: True

    @property
    def highest(self) -> float:
        return HIGHEST.get(self.name, np.inf)


def _is_mixture(row: PlanRow) -> bool:
    return row.is_mixture


def _is_latent(row: PlanRow) -> bool:
    return row.deployment.model.latent_size > 0


def _is_recurrent(row: PlanRow) -> bool:
    return row.deployment.model.fixed_bytes > 0


def _has_ranks(row: PlanRow) -> bool:
    return row.deployment.placement.dp > 1 or (row.prefill is not None and row.prefill.placement.dp > 1)


def _waits(row: PlanRow) -> bool:
    """For the slowest accelerator, in all-reduces or exchanges."""
    return row.deployment.placement.attention_tp > 1 or _has_ranks(row)


def _tokenizes(row: PlanRow) -> bool:
    return row.prefill is None


def _is_cold(row: PlanRow) -> bool:
    return row.plan.is_cold


def _compiles(row: PlanRow) -> bool:
    return row.plan.compiles


def kinds() -> tuple[Kind, ...]:
    """All constants. Spreads are guesses at how far one chip, backend or version is from another; engines of one
    backend have a chip's bandwidth in common, but not their kernels for experts, nor their servers."""

    def of(chip: float, backend: float, engine: float) -> dict[str, float]:
        spreads = ((CHIP, chip), (BACKEND, backend), (ENGINE, engine))
        return {level: spread for level, spread in spreads if spread}

    return (
        Kind("mfu", 0.6, of(0.3, 0.15, 0.1), 0.05, by_dtype=True),
        Kind("bandwidth", 0.75, of(0.2, 0.1, 0.05), 0.2, by_dtype=True),
        Kind("expert_mfu", 0.4, of(0.4, 0.3, 0.2), 0.03, by_dtype=True, concerns=_is_mixture),
        Kind("expert_bandwidth", 0.6, of(0.3, 0.15, 0.1), 0.1, by_dtype=True, concerns=_is_mixture),
        Kind("attention_mfu", 0.4, of(0.5, 0.2, 0.15), 0.03),
        Kind("kv_bandwidth", 0.75, of(0.2, 0.1, 0), 0.2),
        Kind("half_tokens", 60, of(0.7, 0.3, 0), 1),
        Kind("serial", 0.3, of(0.5, 0, 0), 0.01),
        Kind("link", 0.4, of(0.5, 0, 0), 0.02, concerns=_has_ranks),
        Kind("wait_s", 6e-6, of(0.6, 0.4, 0.3), 1e-7, concerns=_waits),
        Kind("exchange_s", 2e-5, of(0.7, 0.5, 0.3), 1e-6, concerns=_has_ranks),
        Kind("layer_s", 9e-6, of(0.5, 0.3, 0.25), 5e-7, by_dtype=True),
        Kind("expert_layer_s", 1.2e-5, of(0.5, 0.3, 0.25), 5e-7, concerns=_is_mixture),
        Kind("latent_layer_s", 1.5e-5, of(0.5, 0.3, 0.25), 5e-7, concerns=_is_latent),
        Kind("recurrent_layer_s", 1.5e-5, of(0.5, 0, 0.25), 5e-7, concerns=_is_recurrent),
        Kind("step_s", 5e-4, of(0.8, 0.5, 0.3), 1e-5),
        Kind("request_s", 8e-6, of(0.8, 0.5, 0.3), 1e-7),
        Kind("prefill_layer_s", 2e-4, of(1, 0.5, 0.4), 1e-6),
        Kind("expert_prefill_layer_s", 1e-4, of(1, 0.5, 0.3), 1e-6, concerns=_is_mixture),
        Kind("latent_prefill_layer_s", 2e-4, of(1, 0.5, 0.3), 1e-6, concerns=_is_latent),
        Kind("recurrent_prefill_layer_s", 2e-4, of(1, 0, 0.3), 1e-6, concerns=_is_recurrent),
        Kind("rank_prefill_s", 5e-3, of(1, 0.5, 0), 1e-5, concerns=_has_ranks),
        Kind("cold_s", 0.3, of(1, 0.7, 0.5), 1e-3, by_dtype=True, concerns=_is_cold),
        Kind("compile_s", 30, of(1, 0, 0), 1, by_dtype=True, concerns=_compiles),
        Kind("tokenize_s", 1e-6, of(1, 0.7, 0.5), 1e-8, concerns=_tokenizes),
        Kind("client_s", 0.02, of(1, 0.7, 0.5), 1e-4),
    )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number that is fitted: a constant's on one level."""

    kind: Kind
    level: str
    place: tuple[str, ...]
    dtype: str
    """"" where all have the same."""


class Tree:
    """The parameters that some rows tell something about, and the constants they make."""

    def __init__(self, rows: Sequence[PlanRow], of_kinds: Sequence[Kind] | None = None) -> None:
        self.rows, self.kinds = rows, tuple(of_kinds or kinds())
        numbers: dict[tuple[str, str, tuple[str, ...], str], int] = {}
        self.parameters: list[Parameter] = []
        members = np.zeros((len(self.kinds), len(rows), len(LEVELS)), dtype=int) - 1
        for number, kind in enumerate(self.kinds):
            for index, row in enumerate(rows):
                if not kind.concerns(row):
                    continue
                dtype = row.dtype if kind.by_dtype else ""
                for depth, level in enumerate(LEVELS):
                    if level not in kind.spread:
                        continue
                    place = LEVELS[level](row)
                    key = kind.name, level, place, dtype
                    if key not in numbers:
                        numbers[key] = len(self.parameters)
                        self.parameters.append(Parameter(kind, level, place, dtype))
                    members[number, index, depth] = numbers[key]
        self.members = members
        """Numbers of the parameters of each kind and row, -1 = none."""
        self.start = np.array([np.log(p.kind.start) if p.level == CHIP else 0.0 for p in self.parameters])
        self.spread = np.array([p.kind.spread[p.level] for p in self.parameters])
        self.limit = np.array([np.log(p.kind.highest) if p.level == CHIP else np.inf for p in self.parameters])
        """No chip reaches more than its peak; factors are free."""

    def values(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The constant of each kind and row; nan where the kind doesn't concern the row."""
        padded = np.append(z, 0.0)
        logs = padded[self.members].sum(axis=2)
        found = np.exp(logs)
        for number, kind in enumerate(self.kinds):
            found[number] = np.clip(found[number], kind.lowest, kind.highest)
        found[(self.members >= 0).sum(axis=2) == 0] = np.nan
        return found

    def constants(self, values: NDArray[np.float64]) -> tuple[list[Constants], list[float]]:
        """What rows are priced by, and the client's seconds."""
        made, client = [], []
        for column in values.T:
            of_row = {kind.name: float(v) for kind, v in zip(self.kinds, column) if not np.isnan(v)}
            client.append(of_row.pop("client_s"))
            made.append(Constants.model_construct(**{**DEFAULTS, **of_row, "link_latency_s": LINK_LATENCY_S}))
        return made, client


DEFAULTS = Constants().model_dump()
LINK_LATENCY_S = 1.2e-5
"""Seconds of an exchange between ranks before its first byte, where no `exchange_s` counts."""

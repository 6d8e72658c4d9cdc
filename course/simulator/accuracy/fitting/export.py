"""The tree as cost/engines.json has it: one table a level, factors that are 1 left out."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.tree import BACKEND, CHIP, LINK_LATENCY_S, Parameter, Tree

Table = dict[str, Any]

SOURCE = (
    "fitted to public measurements of serving points that AIConfigurator collected "
    "(github.com/ai-dynamo/aiconfigurator, Apache-2.0), most of them InferenceX's "
    "(github.com/SemiAnalysisAI/InferenceX)"
)
NEAR_ONE = 0.02
"""A factor that is nearer to 1 is left out."""
DIGITS = 3


def document(tree: Tree, z: NDArray[np.float64]) -> dict[str, Any]:
    """What `engine_profile` reads."""
    chips: dict[str, Any] = {}
    backends: dict[str, Any] = {}
    engines: dict[str, Any] = {}
    for row in sorted(tree.rows, key=lambda row: (row.engine, row.card)):
        made = engines.setdefault(row.engine, {"backend": row.backend, "points": {}})
        made["points"][row.card] = made["points"].get(row.card, 0) + row.points
    for parameter, value in zip(tree.parameters, z):
        if parameter.level == CHIP or abs(value) >= NEAR_ONE:
            table = _table(parameter, chips, backends, engines)
            table[parameter.kind.name] = _rounded(math.exp(value))
    shared = {"link_latency_s": LINK_LATENCY_S}
    return {"source": SOURCE, "shared": shared, "chips": chips, "backends": backends, "engines": engines}


def parameters_of(made: dict[str, Any], tree: Tree) -> NDArray[np.float64]:
    """The parameters of a tree as they were written; where a constant is new, as the tree starts."""
    found = tree.start.copy()
    for number, parameter in enumerate(tree.parameters):
        table = _table(parameter, made["chips"], made["backends"], made["engines"])
        if parameter.kind.name in table:
            found[number] = math.log(table[parameter.kind.name])
    return found


def _table(parameter: Parameter, chips: Table, backends: Table, engines: Table) -> Table:
    """Where a parameter is written."""
    if parameter.level == CHIP:
        table = chips.setdefault(parameter.place[0], {})
    elif parameter.level == BACKEND:
        generation, backend = parameter.place
        table = backends.setdefault(backend, {}).setdefault(generation, {})
    else:
        table = engines.setdefault(parameter.place[0], {})
    if parameter.dtype:
        return table.setdefault("by_weights", {}).setdefault(parameter.dtype, {})
    return table.setdefault("constants", {})


def number_of_constants(made: dict[str, Any]) -> int:
    """Numbers in it that were fitted."""

    def numbers(value: Any) -> int:
        return sum(map(numbers, value.values())) if isinstance(value, dict) else 1

    def fitted(table: dict[str, Any]) -> int:
        return numbers(table.get("constants", {})) + numbers(table.get("by_weights", {}))

    of_backends = [fitted(table) for by_chip in made["backends"].values() for table in by_chip.values()]
    return sum(map(fitted, [*made["chips"].values(), *made["engines"].values()])) + sum(of_backends)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

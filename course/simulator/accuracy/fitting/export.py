"""The tree as cost/engines.json has it: one table a level, factors that are 1 left out."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.tree import BACKEND, CHIP, LINK_LATENCY_S, Parameter, Tree
from course.simulator.cost.profile import DENSE, MIXTURES

Table = dict[str, Any]

SOURCE = (
    "fitted to public measurements of serving points that AIConfigurator collected "
    "(github.com/ai-dynamo/aiconfigurator, Apache-2.0), most of them InferenceX's "
    "(github.com/SemiAnalysisAI/InferenceX)"
)
NEAR_ONE = 0.02
"""A factor that is nearer to 1 is left out."""
DIGITS = 3


def document(fitted: Mapping[str, tuple[Tree, NDArray[np.float64]]]) -> Table:
    """What `engine_profile` reads, of trees and their parameters by kind of model."""
    made: Table = {"source": SOURCE, "shared": {"link_latency_s": LINK_LATENCY_S}, "engines": {}}
    rows = [row for tree, _ in fitted.values() for row in tree.rows]
    for row in sorted(rows, key=lambda row: (row.engine, row.card)):
        points = made["engines"].setdefault(row.engine, {"backend": row.backend, "points": {}})["points"]
        points[row.card] = points.get(row.card, 0) + row.points
    for kind, (tree, z) in fitted.items():
        tables: Table = {"chips": {}, "backends": {}, "engines": {}}
        for parameter, value in zip(tree.parameters, z):
            if parameter.level == CHIP or abs(value) >= NEAR_ONE:
                _table(parameter, tables)[parameter.kind.name] = _rounded(math.exp(value))
        made[kind] = tables
    return made


def parameters_of(tables: Table, tree: Tree) -> NDArray[np.float64]:
    """The parameters of one kind's tree as they were written; where a constant is new, as the tree starts."""
    found = tree.start.copy()
    for number, parameter in enumerate(tree.parameters):
        table = _table(parameter, tables)
        if parameter.kind.name in table:
            found[number] = math.log(table[parameter.kind.name])
    return found


def _table(parameter: Parameter, tables: Table) -> Table:
    """Where a parameter is written."""
    if parameter.level == CHIP:
        table = tables["chips"].setdefault(parameter.place[0], {})
    elif parameter.level == BACKEND:
        generation, backend = parameter.place
        table = tables["backends"].setdefault(backend, {}).setdefault(generation, {})
    else:
        table = tables["engines"].setdefault(parameter.place[0], {})
    if parameter.dtype:
        return table.setdefault("by_weights", {}).setdefault(parameter.dtype, {})
    return table.setdefault("constants", {})


def number_of_constants(made: Table) -> int:
    """Numbers in it that were fitted."""

    def numbers(value: Any) -> int:
        return sum(map(numbers, value.values())) if isinstance(value, dict) else 1

    return sum(numbers(tables) for kind, tables in made.items() if kind in (DENSE, MIXTURES))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

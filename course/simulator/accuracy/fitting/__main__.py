"""`python -m course.simulator.accuracy.fitting --points FILE`: fit the engines' constants, and say how well they carry.

First one half of the curves is fitted and the other tried, twice, the other way round as well; then all are fitted and
written. A curve is one deployment under one engine with one pair of lengths, at all loads.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.export import document, number_of_constants, parameters_of
from course.simulator.accuracy.fitting.fit import Fit, fit, predict
from course.simulator.accuracy.fitting.rows import PlanRow, rows_of
from course.simulator.accuracy.fitting.tree import Tree
from course.simulator.accuracy.play import Forecast
from course.simulator.accuracy.points import read_points
from course.simulator.accuracy.report import Checked, write_bands, write_rows
from course.simulator.cost.bands import FITTED
from course.simulator.cost.profile import DENSE, MIXTURES
from course.simulator.errors import SimulationError
from minillm.core.errors import MinillmError

ENGINES = Path(__file__).parents[2] / "cost" / "engines.json"
GROUPS: tuple[tuple[str, Callable[[PlanRow], bool]], ...] = (
    ("all", lambda row: True),
    ("dense", lambda row: not row.is_mixture),
    *((f"dense, tp {tp}", lambda row, tp=tp: not row.is_mixture and row.tp == tp) for tp in (1, 2, 4, 8)),
    ("mixtures", lambda row: row.is_mixture),
    ("disaggregated", lambda row: row.prefill is not None),
    ("Blackwell", lambda row: row.generation == "blackwell"),
)


Fits = dict[str, Fit]
"""One for each kind of model."""


def kind_of(row: PlanRow) -> str:
    return MIXTURES if row.is_mixture else DENSE


def fit_kinds(rows: Sequence[PlanRow], rounds: int, start: dict[str, Any] | None = None) -> Fits:
    """Dense models and mixtures of experts, each by themselves.

    Args:
        start: constants as written, to begin with.
    """
    found = {}
    for kind in (DENSE, MIXTURES):
        if own := [row for row in rows if kind_of(row) == kind]:
            begin = None if start is None else parameters_of(start[kind], Tree(own))
            found[kind] = fit(own, rounds=rounds, start=begin)
    return found


def carried(found: Fits, rows: Sequence[PlanRow]) -> NDArray[np.float64]:
    """What fits say of rows: where these have parameters that a fit hasn't, factors are 1."""
    predicted = np.zeros((len(rows), 2))
    for kind, of_kind in found.items():
        where = [number for number, row in enumerate(rows) if kind_of(row) == kind]
        own = [rows[number] for number in where]
        known = {(p.kind.name, p.level, p.place, p.dtype): z for p, z in zip(of_kind.tree.parameters, of_kind.z)}
        tree = Tree(own, of_kind.tree.kinds)
        keys = ((p.kind.name, p.level, p.place, p.dtype) for p in tree.parameters)
        z = np.array([known.get(key, start) for key, start in zip(keys, tree.start)])
        predicted[where] = predict(tree, z, own)
    return predicted


def table(rows: Sequence[PlanRow], predicted: NDArray[np.float64]) -> str:
    """Errors by group, each point counted."""
    measured = np.array([[row.ttft_s, row.tpot_s] for row in rows])
    errors = np.repeat((predicted / measured - 1) * 100, [row.points for row in rows], axis=0)
    lines = [f"{'':16}{'points':>7}{'TPOT median':>13}{'MAPE':>7}{'TTFT median':>13}{'MAPE':>7}"]
    for name, is_in in GROUPS:
        chosen = np.repeat([is_in(row) for row in rows], [row.points for row in rows])
        if not chosen.any():
            continue
        ttft, tpot = errors[chosen, 0], errors[chosen, 1]
        told = (
            f"{np.median(tpot):+12.1f}%{np.abs(tpot).mean():6.1f}%{np.median(ttft):+12.1f}%{np.abs(ttft).mean():6.1f}%"
        )
        lines.append(f"{name:16}{chosen.sum():7d}{told}")
    return "\n".join(lines)


def halves(rows: Sequence[PlanRow], rounds: int, seed: int) -> tuple[str, list[Checked]]:
    """Errors on the half that was fitted, and on the other, both ways; and every point with the forecast of the fit
    that had not seen its curve."""
    told = []
    unseen_by = np.zeros((len(rows), 2))
    for half in (0, 1):
        seen = [row for row in rows if row.half(seed) == half]
        where = [number for number, row in enumerate(rows) if row.half(seed) != half]
        if {kind_of(row) for row in seen} != {kind_of(row) for row in rows}:
            raise SimulationError("too few curves to leave half of them out: more points, or --skip-halves")
        found = fit_kinds(seen, rounds)
        unseen_by[where] = carried(found, [rows[number] for number in where])
        told.append(f"Half {half + 1}, fitted:\n{table(seen, carried(found, seen))}")
        told.append(f"The other half, not seen:\n{table([rows[n] for n in where], unseen_by[where])}")
    told.append(f"Every point by the fit that had not seen its curve:\n{table(rows, unseen_by)}")
    return "\n\n".join(told), checked(rows, unseen_by)


def checked(rows: Sequence[PlanRow], predicted: NDArray[np.float64]) -> list[Checked]:
    """Every point with its forecast."""
    return [
        Checked(point, row.is_mixture, row.plan.layout, Forecast(*map(float, forecast)))
        for row, forecast in zip(rows, predicted)
        for point in row.measured
    ]


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(prog="python -m course.simulator.accuracy.fitting", description=__doc__)
    parser.add_argument("--points", type=Path, required=True, help="a table of measured points (.csv)")
    parser.add_argument("--out", type=Path, default=ENGINES, help="where the constants are written")
    parser.add_argument("--rounds", type=int, default=25, help="Gauss-Newton steps, at most")
    parser.add_argument("--skip-halves", action="store_true", help="fit all points only")
    parser.add_argument("--seed", type=int, default=0, help="which curves are in which half")
    parser.add_argument("--rows", type=Path, help="a folder for every point with its forecasts, as tables")
    parser.add_argument("--bands", type=Path, help="write there what the points that were held out tell of errors")
    parser.add_argument("--start", type=Path, help="begin with these constants, as written, when all are fitted")
    options = parser.parse_args()
    try:
        rows = rows_of(read_points(options.points))
        print(f"{sum(row.points for row in rows)} points, {len(rows)} simulations\n", flush=True)
        if not options.skip_halves:
            told, held_out = halves(rows, options.rounds, options.seed)
            print(told + "\n", flush=True)
            if options.rows is not None:
                write_rows(held_out, options.rows / "held_out.csv")
            if options.bands is not None:
                write_bands(held_out, options.bands, FITTED)
        found = fit_kinds(rows, options.rounds, options.start and json.loads(options.start.read_text()))
        made = document({kind: (of_kind.tree, of_kind.z) for kind, of_kind in found.items()})
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        predicted = carried(found, rows)
        if options.rows is not None:
            write_rows(checked(rows, predicted), options.rows / "in_sample.csv")
    except MinillmError as error:
        sys.exit(f"error: {error}")
    print(f"All, fitted:\n{table(rows, predicted)}\n")
    print(f"{number_of_constants(made)} constants in {options.out}")


if __name__ == "__main__":
    main()

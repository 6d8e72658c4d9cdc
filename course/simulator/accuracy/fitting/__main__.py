"""`python -m course.simulator.accuracy.fitting --points FILE`: fit the engines' constants, and say how well they carry.

First one half of the curves is fitted and the other tried, twice, the other way round as well; then all are fitted and
written. A curve is one deployment under one engine with one pair of lengths, at all loads.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.export import document, number_of_constants, parameters_of
from course.simulator.accuracy.fitting.fit import Fit, fit, predict
from course.simulator.accuracy.fitting.rows import Row, rows_of
from course.simulator.accuracy.fitting.tree import Tree
from course.simulator.accuracy.points import read_points
from course.simulator.errors import SimulationError
from minillm.core.errors import MinillmError

ENGINES = Path(__file__).parents[2] / "cost" / "engines.json"
GROUPS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("all", lambda row: True),
    ("dense", lambda row: not row.is_mixture),
    *((f"dense, tp {tp}", lambda row, tp=tp: not row.is_mixture and row.tp == tp) for tp in (1, 2, 4, 8)),
    ("mixtures", lambda row: row.is_mixture),
    ("disaggregated", lambda row: row.prefill is not None),
    ("Blackwell", lambda row: row.generation == "blackwell"),
)


def carried(found: Fit, rows: Sequence[Row]) -> NDArray[np.float64]:
    """What a fit says of other rows: where these have parameters that it hasn't, factors are 1."""
    known = {(p.kind.name, p.level, p.place, p.dtype): value for p, value in zip(found.tree.parameters, found.z)}
    tree = Tree(rows, found.tree.kinds)
    keys = ((p.kind.name, p.level, p.place, p.dtype) for p in tree.parameters)
    return predict(tree, np.array([known.get(key, start) for key, start in zip(keys, tree.start)]), rows)


def table(rows: Sequence[Row], predicted: NDArray[np.float64]) -> str:
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


def halves(rows: Sequence[Row], rounds: int) -> str:
    """Errors on the half that was fitted, and on the other; both ways."""
    told, tried = [], []
    for half in (0, 1):
        seen = [row for row in rows if row.half() == half]
        unseen = [row for row in rows if row.half() != half]
        if not seen or not unseen:
            raise SimulationError("too few curves to leave half of them out: more points, or --skip-halves")
        found = fit(seen, rounds=rounds)
        tried.append((unseen, carried(found, unseen)))
        told.append(f"Half {half + 1}, fitted:\n{table(seen, predict(found.tree, found.z, seen))}")
        told.append(f"The other half, not seen:\n{table(*tried[-1])}")
    both = [row for unseen, _ in tried for row in unseen]
    told.append(f"Every point by the fit that had not seen its curve:\n{table(both, np.vstack([p for _, p in tried]))}")
    return "\n\n".join(told)


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(prog="python -m course.simulator.accuracy.fitting", description=__doc__)
    parser.add_argument("--points", type=Path, required=True, help="a table of measured points (.csv)")
    parser.add_argument("--out", type=Path, default=ENGINES, help="where the constants are written")
    parser.add_argument("--rounds", type=int, default=25, help="Gauss-Newton steps, at most")
    parser.add_argument("--skip-halves", action="store_true", help="fit all points only")
    parser.add_argument("--start", type=Path, help="begin with these constants, as written, when all are fitted")
    options = parser.parse_args()
    try:
        rows = rows_of(read_points(options.points))
        print(f"{sum(row.points for row in rows)} points, {len(rows)} simulations\n", flush=True)
        if not options.skip_halves:
            print(halves(rows, options.rounds) + "\n", flush=True)
        start = options.start and parameters_of(json.loads(options.start.read_text()), Tree(rows))
        found = fit(rows, rounds=options.rounds, start=start)
    except MinillmError as error:
        sys.exit(f"error: {error}")
    made = document(found.tree, found.z)
    options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"All, fitted:\n{table(rows, predict(found.tree, found.z, rows))}\n")
    print(f"{number_of_constants(made)} constants in {options.out}")


if __name__ == "__main__":
    main()

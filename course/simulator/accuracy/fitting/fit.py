"""Fits the tree to rows: Gauss-Newton steps on absolute errors (each error weighed by its inverse, so that large ones
count once and not squared), with a ridge."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.closed_loop import play
from course.simulator.accuracy.fitting.rows import PlanRow
from course.simulator.accuracy.fitting.tree import Kind, Tree

STEP = 0.03
"""Step of a logarithm, for derivatives."""
TRIES = 9
"""Shorter and shorter steps that are tried when one does not help."""
ENOUGH, PATIENCE = 1e-3, 3
"""A fit ends when the loss falls by less than this share so many times in a row: a short step says little."""
FLOOR = 0.05
"""Errors below count squared: nearer than that nobody measures."""
FARTHEST = 1.5
"""TTFT's error counts no more than this: behind a full KV cache or a late client it says nothing."""


@dataclass(frozen=True)
class Fit:
    """Parameters, and how they came about."""

    tree: Tree
    z: NDArray[np.float64]
    loss: float


def predict(tree: Tree, z: NDArray[np.float64], rows: Sequence[PlanRow]) -> NDArray[np.float64]:
    """TTFT and TPOT of the tree's rows, seconds."""
    return _play(tree, tree.values(z), rows)


def _play(tree: Tree, values: NDArray[np.float64], rows: Sequence[PlanRow]) -> NDArray[np.float64]:
    constants, client = tree.constants(values)
    return play(list(rows), constants, client)


def residuals(predicted: NDArray[np.float64], rows: Sequence[PlanRow]) -> NDArray[np.float64]:
    """Errors of TTFT, relative, and of TPOT, in logarithms, so that its median comes out right."""
    measured = np.array([[row.ttft_s, row.tpot_s] for row in rows])
    ratio = predicted / measured
    return np.column_stack([np.clip(ratio[:, 0] - 1, -1, FARTHEST), np.log(ratio[:, 1])])


def fit(
    rows: Sequence[PlanRow],
    kinds: Sequence[Kind] | None = None,
    rounds: int = 12,
    ttft: float = 0.5,
    ridge: float = 0.1,
    start: NDArray[np.float64] | None = None,
    verbose: bool = False,
) -> Fit:
    """The best parameters.

    Args:
        ttft: what an error of TTFT counts, beside the same error of TPOT.
        ridge: what a factor that is one `spread` off costs, in errors of a point by 100%.
    """
    tree = Tree(rows, kinds)
    z = tree.start.copy() if start is None else np.minimum(start, tree.limit)
    points = np.array([row.points for row in rows], dtype=float)
    counts = np.column_stack([ttft * points, points])

    def loss_of(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        predicted = predict(tree, at, rows)
        errors = residuals(predicted, rows)
        size = np.abs(errors)
        huber = np.where(size < FLOOR, size**2 / (2 * FLOOR), size - FLOOR / 2)
        penalty = ridge / 2 * (((at - tree.start) / tree.spread) ** 2).sum()
        return float((counts * huber).sum() + penalty), errors, predicted

    loss, errors, predicted = loss_of(z)
    damping, stuck = 0.3, 0
    for number in range(rounds):
        jacobian = slopes(tree, z, rows, predicted, errors)
        weight = (counts / np.maximum(np.abs(errors), FLOOR)).ravel()
        penalty = ridge / tree.spread**2
        gradient = jacobian.T @ (weight * errors.ravel()) + penalty * (z - tree.start)
        normal = (jacobian * weight[:, None]).T @ jacobian
        improved = False
        for _ in range(TRIES):
            move = np.linalg.solve(normal + np.diag(penalty * (1 + damping) + damping * np.diag(normal)), -gradient)
            move = np.minimum(z + np.clip(move, -0.7, 0.7), tree.limit) - z
            new_loss, new_errors, new_predicted = loss_of(z + move)
            if new_loss < loss:
                improved = True
                break
            damping = max(damping * 4, 0.1)
        if not improved:
            break
        gain = loss - new_loss
        z, loss, errors, predicted, damping = z + move, new_loss, new_errors, new_predicted, damping / 4
        if verbose:
            print(f"round {number + 1}: {loss:.2f}, damping {damping:.3g}", flush=True)
        stuck = stuck + 1 if gain < ENOUGH * loss else 0
        if stuck == PATIENCE:
            break
    return Fit(tree, z, loss)


def slopes(
    tree: Tree,
    z: NDArray[np.float64],
    rows: Sequence[PlanRow],
    predicted: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> NDArray[np.float64]:
    """How each row's two errors change with each parameter. A row has one value of each kind of constant: all rows' are
    moved at once, and the change belongs to all parameters that make up the value."""
    values = tree.values(z)
    jacobian = np.zeros((len(rows), 2, len(z)))
    measured = np.array([row.ttft_s for row in rows])
    for number, kind in enumerate(tree.kinds):
        concerned = ~np.isnan(values[number])
        if not concerned.any():
            continue
        subset = np.flatnonzero(concerned)
        moved = values[:, subset].copy()
        steps = np.where(moved[number] * np.exp(STEP) < kind.highest, STEP, -STEP)
        moved[number] *= np.exp(steps)
        there = _play(tree, moved, [rows[int(i)] for i in subset])
        ttft = (there[:, 0] - predicted[subset, 0]) / measured[subset] / steps
        ttft[errors[subset, 0] >= FARTHEST] *= 0.3
        tpot = np.log(there[:, 1] / predicted[subset, 1]) / steps
        for depth in range(tree.members.shape[2]):
            parameters = tree.members[number, subset, depth]
            has = parameters >= 0
            jacobian[subset[has], 0, parameters[has]] = ttft[has]
            jacobian[subset[has], 1, parameters[has]] = tpot[has]
    return jacobian.reshape(2 * len(rows), len(z))

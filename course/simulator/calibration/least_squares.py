"""Robust least squares in a few numbers, for fits of a handful of constants to thousands of measurements.

Minimized is the sum of C² (√(1 + (r/C)²) - 1) over all residuals r: half their square while they are small, and growing
linearly beyond the outlier size C ("soft L1", a smooth form of Huber's loss, 1964).

Levenberg (1944) and Marquardt (1963): near the minimum the sum looks like a bowl, whose lowest point is a linear system
away. Where it does not look so, the system's diagonal is raised until its solution leads downhill: the step turns
towards the steepest descent, and shrinks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

Residuals = Callable[[list[float]], list[float]]

DIFFERENCE = 1e-7
"""Step of the numeric derivatives. The numbers to find should be of the order of 1."""
CLOSE_ENOUGH = 1e-9
"""A step that lowers the cost by a smaller share of it is the last."""
MOST_STEPS = 100
LEAST_DAMPING, MOST_DAMPING = 1e-9, 1e9
"""Share of the diagonal that is added. With more than the most, no step worth taking leads downhill."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Where the cost is lowest."""

    x: list[float]
    cost: float
    uncertainty: list[float]
    """Standard deviation of each number, if 1 is that of the residuals."""


def least_squares(residuals: Residuals, start: Sequence[float], highest: Sequence[float], outlier: float) -> Solution:
    """The numbers that make the residuals small.

    Args:
        residuals: of some numbers; always equally many, and finite.
        start: where to begin, below `highest`.
        highest: what the numbers cannot exceed; infinity for those that can be anything.
        outlier: a residual that is larger counts linearly.
    """
    x = list(start)
    now = residuals(x)
    cost, damping = cost_of(now, outlier), 1e-3
    slopes = derivatives(residuals, x, now)
    for _ in range(MOST_STEPS):
        downhill, curvature = bowl(now, slopes, outlier)
        # A number at its limit, with the way down beyond it, stays there.
        free = [i for i in range(len(x)) if x[i] < highest[i] or downhill[i] < 0]
        better = None
        while better is None and damping < MOST_DAMPING:
            system = [[curvature[i][j] * (1 + damping * (i == j)) for j in free] for i in free]
            moved = list(x)
            for i, change in zip(free, solve(system, [downhill[i] for i in free])):
                moved[i] = min(x[i] + change, highest[i])
            after = residuals(moved)
            if cost_of(after, outlier) < cost:
                better = moved
            else:
                damping *= 8
        if better is None:
            break
        damping = max(damping / 8, LEAST_DAMPING)
        before, cost = cost, cost_of(after, outlier)
        x, now = better, after
        slopes = derivatives(residuals, x, now)
        if before - cost <= CLOSE_ENOUGH * before:
            break
    _, curvature = bowl(now, slopes, outlier)
    return Solution(x, cost, [math.sqrt(variance) for variance in inverse_diagonal(curvature)])


def cost_of(residuals: Sequence[float], outlier: float) -> float:
    """What is minimized."""
    return outlier**2 * math.fsum(math.sqrt(1 + (r / outlier) ** 2) - 1 for r in residuals)


def derivatives(residuals: Residuals, x: Sequence[float], now: Sequence[float]) -> list[list[float]]:
    """By number: how fast each residual, which is `now`, grows with it."""
    slopes = []
    for i in range(len(x)):
        moved = list(x)
        moved[i] -= DIFFERENCE  # downwards, where there is no limit
        slopes.append([(here - there) / DIFFERENCE for here, there in zip(now, residuals(moved))])
    return slopes


def bowl(
    now: Sequence[float], slopes: Sequence[Sequence[float]], outlier: float
) -> tuple[list[float], list[list[float]]]:
    """The cost around here: minus its gradient, and its curvature as Gauss and Newton have it."""
    spread = [1 + (r / outlier) ** 2 for r in now]
    pull = [-r / math.sqrt(s) for r, s in zip(now, spread)]
    weight = [s**-1.5 for s in spread]
    downhill = [dot(slope, pull) for slope in slopes]
    weighted = [list(map(mul, slope, weight)) for slope in slopes]
    return downhill, [[dot(one, other) for other in slopes] for one in weighted]


def dot(ones: Sequence[float], others: Sequence[float]) -> float:
    """The sum of the products."""
    return math.fsum(map(mul, ones, others))


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x with matrix x = right, by elimination. The matrix is positive definite, so no row need be exchanged."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    size = len(rows)
    for i, pivot in enumerate(rows):
        for row in rows[i + 1 :]:
            share = row[i] / pivot[i]
            for j in range(i, size + 1):
                row[j] -= share * pivot[j]
    x = [0.0] * size
    for i in reversed(range(size)):
        x[i] = (rows[i][size] - dot(rows[i][i + 1 : size], x[i + 1 :])) / rows[i][i]
    return x


def inverse_diagonal(matrix: Sequence[Sequence[float]]) -> list[float]:
    """The diagonal of its inverse."""
    size = len(matrix)
    return [solve(matrix, [float(i == j) for j in range(size)])[i] for i in range(size)]

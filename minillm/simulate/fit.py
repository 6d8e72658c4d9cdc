"""Fitting constants to seconds: robust least squares with priors.

Every constant is fitted as the logarithm of its ratio to a prior, so it keeps its sign and its unit does not
matter. A prior weighs as much as one observation: what the data show decides, and what they do not show
(the link, on one GPU) stays where it was. Outliers count linearly, not squared (Huber 1964).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from minillm.core.errors import PricingError
from minillm.simulate.roofline import HIGHEST, MAX_SHARE, SHARES, Constants, StepTimeModel, StepWork

SPREAD = MappingProxyType({"mfu": 0.25, "bandwidth": 0.1, "kv_bandwidth": 0.2, "attention_mfu": 0.3, "link": 0.7})
"""How far a constant may well be from its prior: standard deviation of the logarithm. Judged, not measured: libraries
reach about the same share of the bandwidth everywhere, and links differ most."""
USUAL_SPREAD = 1.0
WIDEST = 1e3
"""Times its prior: what a constant cannot exceed that has no limit of its own."""
OUTLIER = 1.5
"""Observations that are further off than so many times what noise makes count linearly."""
TINY = 1e-7
"""Seconds: a constant of 0 is fitted from here up, since its logarithm would be minus infinity."""
FITTED = 0.5
"""A constant was decided by data, not by its prior, if they shrink its uncertainty below this share of it."""


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """Constants that reproduce measurements best."""

    constants: Constants
    decided: tuple[str, ...]
    """Names of the constants that the data decided; the others stayed near their priors."""
    cost: float
    """What was minimised: comparable between fits to the same data."""


def fit_constants(
    residuals: Callable[[Constants], np.ndarray],
    prior: Constants,
    free: Sequence[str],
    start: Constants | None = None,
    *,
    spread: Mapping[str, float] = SPREAD,
    limits: Mapping[str, float] = MappingProxyType({}),
) -> FittedConstants:
    """The constants that make the residuals small.

    Args:
        residuals: [N] floats, in units of what is to be expected (1 = as far off as noise makes it).
        prior: where constants stay that the residuals do not depend on.
        free: names of the constants to fit; the others are the prior's.
        start: where to begin; None = at the prior.
        spread: how far constants may well be from the prior, as SPREAD; USUAL_SPREAD where it has none.
        limits: what some constants cannot exceed.
    Raises:
        PricingError: the residuals are not finite at the start.
    """
    spreads = np.array([spread.get(name, USUAL_SPREAD) for name in free])
    centres = np.array([max(getattr(prior, name), TINY) for name in free])
    highest = [math.log(HIGHEST.get(name, WIDEST * centre) / centre) for name, centre in zip(free, centres)]

    def constants_at(x: np.ndarray) -> Constants:
        return prior.replace(**{name: float(c * math.exp(v)) for name, c, v in zip(free, centres, x)})

    def all_residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(constants_at(x)), x / spreads])

    begin = start or prior
    x0 = np.array([math.log(max(getattr(begin, name), TINY) / c) for name, c in zip(free, centres)])
    if not np.isfinite(all_residuals(x0)).all():
        raise PricingError("the measurements hold no finite times to fit to")
    upper = np.array([min(h, math.log(limits.get(n, math.inf) / c)) for n, c, h in zip(free, centres, highest)])
    x0 = np.minimum(x0, upper - 1e-6)
    found = least_squares(all_residuals, x0, bounds=(-np.inf, upper), loss="soft_l1", f_scale=OUTLIER, x_scale=spreads)
    uncertainty = np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)))
    decided = tuple(n for n, u, s in zip(free, uncertainty, spreads) if u < FITTED * s)
    return FittedConstants(constants_at(found.x), decided, float(found.cost))


def slower(constants: Constants, factor: float, names: Sequence[str]) -> Constants:
    """With all that the named constants stand for taking `factor` times as long."""
    shares = {name: min(getattr(constants, name) / factor, MAX_SHARE) for name in names if name in SHARES}
    seconds = {name: getattr(constants, name) * factor for name in names if name.endswith("_s")}
    return constants.replace(**shares, **seconds)


def stack(works: Sequence[StepWork]) -> StepWork:
    """Many steps as one StepWork of arrays."""
    fields = ("tokens", "logits", "requests", "pairs", "context", "prefills")
    return StepWork(*(np.array([getattr(work, name) for work in works], dtype=float) for name in fields))


def step_seconds(model: StepTimeModel, works: StepWork) -> np.ndarray:
    """[N] seconds of N stacked steps."""
    return model.price(works, np.maximum).total

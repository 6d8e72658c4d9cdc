"""Fitting constants to seconds: robust least squares with priors.

Every constant is fitted as the logarithm of its ratio to a prior, so it keeps its sign and its unit does not
matter. A prior weighs as much as one observation: what the data show decides, and what they do not show
(the link, on one GPU) stays where it was. Outliers count linearly, not squared (Huber 1964).
"""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

from course.simulator.calibration.least_squares import least_squares
from course.simulator.cost.hardware import Hardware
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.roofline import HIGHEST, MAX_SHARE, SHARES, Constants, StepTimeModel, StepWork
from course.simulator.errors import PricingError
from minillm.core.brief import brief
from minillm.observe.percentiles import percentile

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
    """What was minimized: comparable between fits to the same data."""


def fit_constants(
    residuals: Callable[[Constants], list[float]],
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
    spreads = [spread.get(name, USUAL_SPREAD) for name in free]
    centres = [max(getattr(prior, name), TINY) for name in free]

    def constants_at(x: list[float]) -> Constants:
        return prior.replace(**{name: centre * math.exp(v) for name, centre, v in zip(free, centres, x)})

    def all_residuals(x: list[float]) -> list[float]:
        return residuals(constants_at(x)) + [v / s for v, s in zip(x, spreads)]

    def highest(name: str, centre: float) -> float:
        most = min(HIGHEST.get(name, WIDEST * centre), limits.get(name, math.inf))
        return math.log(most / centre)

    begin, upper = start or prior, [*map(highest, free, centres)]
    x0 = [math.log(max(getattr(begin, name), TINY) / centre) for name, centre in zip(free, centres)]
    if not all(map(math.isfinite, all_residuals(x0))):
        raise PricingError("the measurements hold no finite times to fit to")
    found = least_squares(all_residuals, [*map(min, x0, upper)], upper, OUTLIER)
    decided = tuple(n for n, u, s in zip(free, found.uncertainty, spreads) if u < FITTED * s)
    return FittedConstants(constants_at(found.x), decided, found.cost)


def slower(constants: Constants, factor: float, names: Sequence[str]) -> Constants:
    """With all that the named constants stand for taking `factor` times as long."""
    shares = {name: min(getattr(constants, name) / factor, MAX_SHARE) for name in names if name in SHARES}
    seconds = {name: getattr(constants, name) * factor for name in names if name.endswith("_s")}
    return constants.replace(**shares, **seconds)


def step_seconds(model: StepTimeModel, works: Iterable[StepWork]) -> list[float]:
    """What each step takes."""
    return [model.price(work).total for work in works]


NOISE_SHARE = 0.03
"""Relative error to be expected of one timed step."""
HELD_OUT = 0.3
OF_PROMPTS = ("mfu", "attention_mfu", "prefill_s", "prefill_host_s")
"""Constants that are most of the price of a step with prompts, and little of a decode's."""
ROUNDS = 8
"""Enough for both kinds of steps to be matched to a thousandth."""
GAIN = 0.9
"""A round that leaves more than this share of what was off changes constants that do not decide the price."""
EAGER_LAUNCH_S = 3e-4
"""Host seconds to launch one layer's kernels one by one: some 15 kernels, and Python around them."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One measured step."""

    work: StepWork
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTable:
    """Timed steps of one model on one placement."""

    model: PricedModel
    hardware: Hardware
    placement: Placement
    steps: Sequence[TimedStep]

    __repr__ = brief

    def relative_errors(self, constants: Constants) -> list[float]:
        """[N] priced over measured seconds, minus 1; infinite where no time was measured."""
        model = StepTimeModel(self.model, self.hardware, self.placement, constants)
        priced = step_seconds(model, (step.work for step in self.steps))
        return [seconds / step.seconds - 1 if step.seconds else math.inf for seconds, step in zip(priced, self.steps)]

    def slowness(self, constants: Constants) -> float:
        """How much longer a step took than it is priced, on average."""
        return fmean(1 / (1 + error) for error in self.relative_errors(constants))

    def only(self, *, prompts: bool) -> "StepTable":
        """The steps that compute prompts, or those that only decode."""
        return replace(self, steps=[step for step in self.steps if bool(step.work.prefills) is prompts])

    def split(self) -> tuple["StepTable", "StepTable"]:
        """For fitting, and held out: HELD_OUT of the rows, drawn by a hash of their number, so always the same."""
        training: list[TimedStep] = []
        held: list[TimedStep] = []
        for i, step in enumerate(self.steps):
            (held if zlib.crc32(f"row {i}".encode()) % 1000 < 1000 * HELD_OUT else training).append(step)
        return replace(self, steps=training), replace(self, steps=held)


def fit_to_steps(tables: Sequence[StepTable], prior: Constants, free: Sequence[str]) -> FittedConstants:
    """The constants that price all the tables' steps best, in relative terms.

    Raises:
        PricingError: there is no finite time to fit to.
    """

    def residuals(constants: Constants) -> list[float]:
        return [error / NOISE_SHARE for table in tables for error in table.relative_errors(constants)]

    # Where launching is hidden, a little more of it changes nothing: no slope leads from there to a stack
    # without CUDA graphs. So the fit begins at both, and the better end counts.
    starts = [prior, prior.replace(launch_s=EAGER_LAUNCH_S)] if "launch_s" in free else [prior]
    return min((fit_constants(residuals, prior, free, start) for start in starts), key=lambda fitted: fitted.cost)


def from_usual_to_mean(constants: Constants, table: StepTable, free: Sequence[str]) -> Constants:
    """The constants of a usual step, made those of the mean one.

    Outliers hardly count in a robust fit. But requests wait for slow steps, too, and an answer is the sum of many. A
    hiccup makes a short step relatively longer than a long one, so decodes and steps with prompts are matched apart,
    until no more is gained: steps that wait for something else do not change with these constants.
    """
    of_prompts = [name for name in free if name in OF_PROMPTS]
    others = [name for name in free if name not in OF_PROMPTS]
    both = ((table.only(prompts=False), others), (table.only(prompts=True), of_prompts))
    parts = [(part, names) for part, names in both if part.steps]

    def off(candidate: Constants) -> float:
        return sum(abs(math.log(part.slowness(candidate))) for part, _ in parts)

    for _ in range(ROUNDS):  # each part's constants are also a little of the other's price
        better = constants
        for part, names in parts:
            better = slower(better, part.slowness(better), names)
        if off(better) > GAIN * off(constants):
            break
        constants = better
    return constants


def error_report(tables: Sequence[StepTable], constants: Constants) -> dict[str, float | int]:
    """Median, 90th percentile and mean of the relative error, in percent, over some tables' steps."""
    errors = [error for table in tables for error in table.relative_errors(constants)]
    if not errors:
        return {"steps": 0}
    sizes = [abs(error) for error in errors]
    return {
        "steps": len(errors),
        "median_percent": round(100 * percentile(sizes, 50), 2),
        "p90_percent": round(100 * percentile(sizes, 90), 2),
        "mean_signed_percent": round(100 * fmean(errors), 2),
    }

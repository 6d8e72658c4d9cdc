"""Fitting constants to seconds: robust least squares with priors.

Every constant is fitted as the logarithm of its ratio to a prior, so it keeps its sign and its unit does not
matter. A prior weighs as much as one observation: what the data show decides, and what they do not show
(the link, on one GPU) stays where it was. Outliers count linearly, not squared (Huber 1964).
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

import numpy as np
from pydantic import BaseModel
from scipy.optimize import least_squares

from minillm.core.errors import PricingError, RecordingError
from minillm.model.arithmetic import ModelCost, find_model
from minillm.simulate.cost.hardware import Hardware
from minillm.simulate.cost.placement import Placement
from minillm.simulate.cost.profile import PRIORS, Profile, today
from minillm.simulate.cost.roofline import HIGHEST, MAX_SHARE, ROOFLINE, SHARES, Constants, StepTimeModel, StepWork
from minillm.simulate.workload.traces import csv_rows

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

    model: ModelCost
    hardware: Hardware
    placement: Placement
    steps: Sequence[TimedStep]

    def relative_errors(self, constants: Constants) -> np.ndarray:
        """[N] priced over measured seconds, minus 1."""
        model = StepTimeModel(self.model, self.hardware, self.placement, constants)
        measured = np.array([step.seconds for step in self.steps])
        return step_seconds(model, stack([step.work for step in self.steps])) / measured - 1

    def slowness(self, constants: Constants) -> float:
        """How much longer a step took than it is priced, on average."""
        return float(np.mean(1 / (1 + self.relative_errors(constants))))

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

    def residuals(constants: Constants) -> np.ndarray:
        errors = [table.relative_errors(constants) for table in tables if table.steps]
        return np.concatenate([*errors, np.zeros(0)]) / NOISE_SHARE

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
    errors = np.concatenate([*(table.relative_errors(constants) for table in tables if table.steps), np.zeros(0)])
    if not len(errors):
        return {"steps": 0}
    median_error, p90 = np.percentile(np.abs(errors), (50, 90))
    return {
        "steps": len(errors),
        "median_percent": round(100 * float(median_error), 2),
        "p90_percent": round(100 * float(p90), 2),
        "mean_signed_percent": round(100 * float(np.mean(errors)), 2),
    }


# ---------------------------------------------------------------- published tables

EAGER_CONSTANTS = (
    "mfu", "half_tokens", "bandwidth", "kv_bandwidth", "link", "link_latency_s", "launch_s", "prefill_host_s",
    "request_s",
)  # fmt: skip
"""What a table of prompt and token times over batch sizes and tensor parallel degrees can show."""


class StepRow(BaseModel):
    """One batch of equal prompts: the step over all of them, and the average decode step after it, in milliseconds."""

    prompt_size: int
    batch_size: int
    token_size: int
    prompt_time: float
    token_time: float
    tensor_parallel: int

    @property
    def configuration(self) -> tuple[int, int, int]:
        """What tells rows of the recording apart."""
        return self.tensor_parallel, self.prompt_size, self.batch_size

    def steps(self) -> list[TimedStep]:
        """The two steps that it times: its prompts, and its average decode step."""
        prompt, batch = self.prompt_size, self.batch_size
        tokens = batch * prompt
        prefill = StepWork(tokens, batch, batch, batch * prompt * (prompt + 1) / 2, tokens, 1)
        context = batch * (prompt + self.token_size / 2)
        decode = StepWork(batch, batch, batch, context, context, 0)
        return [TimedStep(prefill, self.prompt_time / 1e3), TimedStep(decode, self.token_time / 1e3)]


def read_step_table(path: Path, model: ModelCost, hardware: Hardware) -> tuple[list[StepTable], list[str]]:
    """A table of prompt and token times in the format of Splitwise's simulator (Patel et al. 2024).

    Returns:
        A table for each tensor parallel degree; and a line about each group of rows that was left out.
    Raises:
        RecordingError: the file cannot be read, or lacks columns or numbers.
    """
    try:
        rows = list(csv_rows(path, StepRow, RecordingError))
    except (OSError, UnicodeError) as error:
        raise RecordingError(f"cannot read {path}: {error}") from None
    wrong = implausible(rows)
    tables = []
    for tp in sorted({row.tensor_parallel for row in rows}):
        timed = [row for row in rows if row.tensor_parallel == tp and row.configuration not in wrong]
        tables.append(StepTable(model, hardware, Placement(tp), [step for row in timed for step in row.steps()]))
    notes = [
        f"tp {tp}, {batch} prompts of {prompt}: left out, since they took less time than fewer prompts do"
        for tp, prompt, batch in sorted(wrong)
    ]
    return tables, notes


def implausible(rows: Sequence[StepRow]) -> set[tuple[int, int, int]]:
    """Configurations that cannot be right: more prompts of the same length took less time than fewer did.

    Prompts of hundreds of tokens are compute-bound, so time grows with their number. The median of a
    configuration is compared, and it has to fall short by a fifth.
    """
    times: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        times.setdefault(row.configuration, []).append(row.prompt_time)
    medians = {key: median(values) for key, values in times.items()}
    return {
        (tp, prompt, batch)
        for (tp, prompt, batch), time in medians.items()
        if any(
            other[:2] == (tp, prompt) and other[2] < batch and time < 0.8 * earlier
            for other, earlier in medians.items()
        )
    }


def calibrate_from_steps(table: Path, model: str, hardware: Hardware) -> Profile:
    """Fit constants to a published table of step times; a part is held out to tell the error.

    Raises:
        RecordingError: the table cannot be read.
    """
    tables, notes = read_step_table(table, find_model(model), hardware)
    training, held_out = zip(*(one.split() for one in tables))
    prior = Constants(**PRIORS)
    fitted = fit_to_steps(training, prior, EAGER_CONSTANTS)
    provenance = {
        "source": f"{sum(len(one.steps) for one in tables)} steps of {table.name}",
        "model": model,
        "tp": [one.placement.tp for one in tables],
        "left_out": notes,
        "fitted": list(EAGER_CONSTANTS),
        "decided_by_data": list(fitted.decided),
        "date": today(),
        "held_out_error": {
            "all": error_report(held_out, fitted.constants),
            "prompt": error_report([one.only(prompts=True) for one in held_out], fitted.constants),
            "token": error_report([one.only(prompts=False) for one in held_out], fitted.constants),
            "pure_roofline": error_report(held_out, ROOFLINE),
        },
    }
    return Profile(hardware, fitted.constants, provenance)

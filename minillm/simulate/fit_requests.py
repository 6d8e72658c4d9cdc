"""Constants from a log of requests, though no step of it was ever timed.

A request's prefill and decode are sums of step times, and the scheduler knows which steps (fit_schedule.py).
So, in turn:

1. serve the log in lockstep with the constants so far, and write down what was in which step
2. with that schedule held still, choose the constants that make the sums match the log's stamps

until they move no more. Time in the queue is not fitted: it is a sum of everybody else's step times, and says
nothing new about any of them.

One number is then set by the whole: how fast the device is, all in all. The log's server and ours let in and
preempt not quite the same requests (a log has lengths, so nobody knows which prompts shared a prefix), and that
is no property of a kernel.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from minillm.simulate.deployment import Deployment
from minillm.simulate.fit import SPREAD, FittedConstants, fit_constants, slower, step_seconds
from minillm.simulate.fit_schedule import Schedule, schedule_of, usual_step
from minillm.simulate.log_report import compare_with_log, serve_log
from minillm.simulate.requests_log import LoggedRequest, timed
from minillm.simulate.roofline import Constants, StepTimeModel

GPU_CONSTANTS = ("mfu", "half_tokens", "bandwidth", "kv_bandwidth", "attention_mfu", "step_s", "request_s")
"""What a log of one GPU can show, or leave at its prior."""
LINK_CONSTANTS = ("link", "link_latency_s")
LOG_SPREAD = {**SPREAD, "bandwidth": 0.07, "half_tokens": 0.7, "step_s": 0.5}
"""On one model alone, reading its weights and what every step costs anyway are nearly one number: how far each of
them may well be from its prior is what tells them apart, and matters when the constants serve another model."""
REACHABLE = {"bandwidth": 0.95, "kv_bandwidth": 0.95}
"""Refreshing and opening rows takes its share of any DRAM's time: nothing reads it faster."""
MAX_ROUNDS = 8
CLOSE_ENOUGH = 0.003
"""Rounds end when no step time moves by more than this share of itself, on average."""

NOISE_SHARE = 0.005
NOISE_STEPS = 0.25
"""What is to be expected between a real and a simulated duration: this share of it, and this part of a step."""
OUTLIER = 2.0
"""From this many times the noise on, it hardly matters how far off a request is: it was preempted in one world only."""
SPEEDS = tuple(percent / 100 for percent in range(96, 105))
"""All that a change of the whole may do."""


def fit_to_log(
    deployment: Deployment, log: Sequence[LoggedRequest], free: Sequence[str], max_rounds: int = MAX_ROUNDS
) -> FittedConstants:
    """Fit constants to a log of requests.

    Args:
        deployment: as the server was configured; its profile's constants are the prior.
        free: names of the constants to fit.
    Raises:
        RecordingError: no request of the log is timed.
        PricingError: a request does not fit the window or the KV pool.
    """
    prior = deployment.profile.constants
    noise = NOISE_STEPS * usual_step(log)

    def model_of(constants: Constants) -> StepTimeModel:
        return deployment.with_constants(constants).step_time()

    def misfit(schedule: Schedule, constants: Constants) -> np.ndarray:
        return residuals(schedule, model_of(constants), noise)

    current = FittedConstants(prior, (), np.inf)
    for done in range(max_rounds):
        schedule = schedule_of(deployment.with_constants(current.constants), log)
        fitted = fit_constants(
            partial(misfit, schedule),
            prior, free, current.constants, spread=LOG_SPREAD, limits=REACHABLE,
        )  # fmt: skip
        # From the second round on half the way: a schedule made by too fast a device asks for a slow one, and the
        # two would alternate.
        constants = between(current.constants, fitted.constants, free) if done else fitted.constants
        before = step_seconds(model_of(current.constants), schedule.works)
        after = step_seconds(model_of(constants), schedule.works)
        current = FittedConstants(constants, fitted.decided, fitted.cost)
        if np.mean(np.abs(after / before - 1)) < CLOSE_ENOUGH:
            break
    return current


def residuals(schedule: Schedule, model: StepTimeModel, noise: float) -> np.ndarray:
    """[2 N] how far sums of step times are from the log, in units of the noise, outliers reined in.

    Args:
        noise: seconds, beside NOISE_SHARE of each duration.
    """
    measured = schedule.measured
    off = (schedule.simulated(model) - measured) / (noise + NOISE_SHARE * measured)
    return OUTLIER * np.sign(off) * np.sqrt(np.log1p((off / OUTLIER) ** 2))  # squared: the Cauchy loss


def between(a: Constants, b: Constants, names: Sequence[str]) -> Constants:
    """The geometric mean of some constants of two sets."""
    return b.replace(**{name: (getattr(a, name) * getattr(b, name)) ** 0.5 for name in names})


def set_speed(deployment: Deployment, log: Sequence[LoggedRequest], free: Sequence[str]) -> tuple[Constants, float]:
    """Make all fitted constants slower or faster by one factor, by what the log's metrics come to when it is served
    freely, not in lockstep.

    Returns:
        The constants, and the factor: how much longer everything takes.
    """
    timed(log)
    constants = deployment.profile.constants

    def error(factor: float) -> float:
        outputs = serve_log(deployment.with_constants(slower(constants, factor, free)), log)
        _, _, errors = compare_with_log(outputs, log)
        found = [errors[metric].values() for metric in ("ttft_s", "tpot_s", "e2e_s")]
        return sum(percent**4 for part in found for percent in part if percent is not None)  # the worst count most

    best = min(sorted(SPEEDS, key=lambda factor: abs(factor - 1)), key=error)
    return slower(constants, best, free), best

"""Constants from a log of requests, though no step of it was ever timed.

A request's decode phase is a sum of step times, and the scheduler knows which steps: replaying the log says
what was in each of them. So, in turn:

1. replay the log with the constants so far, and write down the work in every step, and in which step each
   request came, got its first token, and got its last
2. with that schedule held still, choose the constants that make the sums match the log's stamps

until they move no more. Better constants make a better schedule, and the other way round. Time in the queue is
not fitted: it is a sum of everybody else's step times, and says nothing new about any of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minillm.scheduling.batch import ScheduledBatch
from minillm.simulate.deployment import Deployment
from minillm.simulate.fit import FittedConstants, fit_constants, stack, step_seconds
from minillm.simulate.log_report import serve_log
from minillm.simulate.requests_log import LoggedRequest, timed
from minillm.simulate.roofline import Constants, StepTime, StepTimeModel, StepWork

GPU_CONSTANTS = ("mfu", "bandwidth", "kv_bandwidth", "attention_mfu", "step_s", "request_s")
"""What a log of one GPU can show, or leave at its prior."""
LINK_CONSTANTS = ("link", "link_latency_s")
MAX_ROUNDS = 8
CLOSE_ENOUGH = 0.003
"""Rounds end when no step time moves by more than this share of itself, on average."""

NOISE_SHARE = 0.02
NOISE_S = 0.05
"""What is to be expected between a real and a simulated duration: 2%, and a short step more or less."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which step did what, in one replay of a log."""

    works: StepWork
    """Arrays, one entry per step."""
    scheduled: np.ndarray
    """[N] steps that were over when each request was first scheduled."""
    first: np.ndarray
    """[N] steps that were over once it had its first token."""
    last: np.ndarray
    """[N] steps that were over once it had its last."""
    prefill: np.ndarray
    """[N] measured seconds from scheduled to first token."""
    decode: np.ndarray
    """[N] measured seconds from first to last token."""

    def residuals(self, model: StepTimeModel) -> np.ndarray:
        """[2 N] how far sums of step times are from the log, in units of the noise."""
        until = np.concatenate([[0.0], np.cumsum(step_seconds(model, self.works))])
        prefill = until[self.first] - until[self.scheduled]
        decode = until[self.last] - until[self.first]
        return np.concatenate(
            [
                (prefill - self.prefill) / (NOISE_S + NOISE_SHARE * self.prefill),
                (decode - self.decode) / (NOISE_S + NOISE_SHARE * self.decode),
            ]
        )


def schedule_of(deployment: Deployment, log: Sequence[LoggedRequest]) -> Schedule:
    """Serve a log's requests on a simulated deployment, and write down who was in which step."""
    works: list[StepWork] = []
    ends: list[float] = []

    def watch(_: ScheduledBatch, price: StepTime, end: float) -> None:
        works.append(price.work)
        ends.append(end)

    outputs = serve_log(deployment, log, watch)
    measured = {request.request_id: request for request in timed(log)}
    known = [output for output in outputs if output.request_id in measured]
    logged = [measured[output.request_id] for output in known]
    timelines = [output.timeline for output in known]

    def steps_until(stamps: Sequence[float]) -> np.ndarray:
        return np.array([bisect_right(ends, stamp) for stamp in stamps])

    return Schedule(
        works=stack(works),
        scheduled=steps_until([t.scheduled for t in timelines]),
        first=steps_until([t.first_token for t in timelines]),
        last=steps_until([t.last_token for t in timelines]),
        prefill=np.array([request.ttft - request.queue for request in logged]),
        decode=np.array([request.e2e - request.ttft for request in logged]),
    )


def fit_to_log(
    deployment: Deployment, log: Sequence[LoggedRequest], free: Sequence[str], max_rounds: int = MAX_ROUNDS
) -> FittedConstants:
    """Fit constants to a log of requests.

    Args:
        deployment: as the server was configured; its profile's constants are the prior.
        free: names of the constants to fit.
    Raises:
        RecordingError: no request of the log is timed.
    """
    timed(log)
    prior = deployment.profile.constants

    def model_of(constants: Constants) -> StepTimeModel:
        return deployment.with_constants(constants).step_time()

    current = FittedConstants(prior, (), np.inf)
    for _ in range(max_rounds):
        schedule = schedule_of(deployment.with_constants(current.constants), log)
        fitted = fit_constants(
            lambda constants, schedule=schedule: schedule.residuals(model_of(constants)), prior, free, current.constants
        )
        # Half the way: a schedule made by too fast a device asks for a slow one, and the two would alternate.
        halfway = between(current.constants, fitted.constants, free)
        before = step_seconds(model_of(current.constants), schedule.works)
        after = step_seconds(model_of(halfway), schedule.works)
        current = FittedConstants(halfway, fitted.decided, fitted.cost)
        if np.mean(np.abs(after / before - 1)) < CLOSE_ENOUGH:
            break
    return current


def between(a: Constants, b: Constants, names: Sequence[str]) -> Constants:
    """The geometric mean of some constants of two sets."""
    return b.replace(**{name: (getattr(a, name) * getattr(b, name)) ** 0.5 for name in names})

"""Constants from a log of requests, though no step of it was ever timed.

A request's prefill and decode are sums of step times, and the scheduler knows which steps (`schedule_of`).
So, in turn:

1. serve the log in lockstep with the constants so far, and write down what was in which step
2. with that schedule held still, choose the constants that make the sums match the log's stamps

until they move no more. Time in the queue is not fitted: it is a sum of all other requests' step times, and says
nothing new about any of them.

One number is then set by the whole: how fast the device is, all in all. The log's server and ours let in and
preempt not quite the same requests (a log has lengths, so which prompts shared a prefix is unknown), and that
is no property of a kernel.
"""

import bisect
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from course.simulator.calibration.fit import SPREAD, FittedConstants, fit_constants, slower, step_seconds
from course.simulator.calibration.replay import arrivals_of, compare_with_log, serve_log
from course.simulator.calibration.requests_log import LoggedRequest, read_requests_log, timed
from course.simulator.cost.profile import Profile, today
from course.simulator.cost.roofline import Constants, StepTime, StepTimeModel, StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.latencies import SummaryDict
from course.simulator.simulated_runner import StepPrice, StepWatch
from minillm.core.batch import ScheduledBatch
from minillm.core.timeline import VirtualClock
from minillm.frontend.outputs import RequestOutput

LAST_ENDS = 9
"""The clocks are compared by the median of so many requests that ended last: some were preempted in one world only."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which step did what, and what the log says of the same stretches of time."""

    works: list[StepWork]
    """What each step computed."""
    scheduled: list[int]
    """[N] steps that were over when each request was first scheduled."""
    first: list[int]
    """[N] steps that were over once it had its first token."""
    last: list[int]
    """[N] steps that were over once it had its last."""
    prefill: list[float]
    """[N] measured seconds from scheduled to first token."""
    decode: list[float]
    """[N] measured seconds from first to last token."""

    @property
    def measured(self) -> list[float]:
        """[2 N] seconds: all prefills, then all decodes."""
        return self.prefill + self.decode

    def simulated(self, model: StepTimeModel) -> list[float]:
        """[2 N] seconds of the same, with steps priced by a model."""
        until = list(itertools.accumulate(step_seconds(model, self.works), initial=0.0))
        stretches = itertools.chain(zip(self.scheduled, self.first), zip(self.first, self.last))
        return [until[end] - until[begin] for begin, end in stretches]


def schedule_of(deployment: Deployment, log: Sequence[LoggedRequest]) -> Schedule:
    """Serve a log in lockstep, and write down who was in which step.

    Raises:
        RecordingError: no request of the log is timed.
        PricingError: a request does not fit the window or the KV pool.
    """
    works: list[StepWork] = []
    ends: list[float] = []

    def watch(_: ScheduledBatch, price: StepPrice, end: float) -> None:
        assert isinstance(price, StepTime), "a deployment prices steps by its roofline"
        works.append(price.work)
        ends.append(end)

    timelines = {output.request_id: output.timeline for output in serve_in_lockstep(deployment, log, watch)}
    logged = timed(log)
    ours = [timelines[request.request_id] for request in logged]

    def steps_until(stamp: float | None) -> int:
        assert stamp is not None, "it has been served"
        return bisect.bisect_right(ends, stamp)

    return Schedule(
        works=works,
        scheduled=[steps_until(t.scheduled) for t in ours],
        first=[steps_until(t.first_token) for t in ours],
        last=[steps_until(t.last_token) for t in ours],
        prefill=[request.ttft - request.queue for request in logged],
        decode=[request.e2e - request.ttft for request in logged],
    )


def serve_in_lockstep(deployment: Deployment, log: Sequence[LoggedRequest], watch: StepWatch) -> list[RequestOutput]:
    """The log's requests, each let in when the log says, by a clock that follows the log's."""
    clock = VirtualClock()
    engine = deployment.fast_engine(clock, watch)
    if any(request.input_tokens + request.output_tokens > engine.context_limit for request in log):
        raise PricingError(
            f"a request of the log does not fit window or KV pool, which hold {engine.context_limit} tokens: "
            "give max_model_len and KV blocks as the server had them"
        )
    ended = {request.request_id: request.last_token for request in timed(log)}
    early = usual_step(log) / 4
    let_in = [r if math.isnan(r.scheduled) else replace(r, queued=r.scheduled) for r in log]
    arrivals = deque(arrivals_of(sorted(let_in, key=lambda request: request.queued)))
    ahead: deque[float] = deque([0.0], maxlen=LAST_ENDS)
    outputs: list[RequestOutput] = []
    while arrivals or engine.has_unfinished:
        offset = median(ahead)
        if not engine.has_unfinished:
            clock.advance_to(max(clock.now(), arrivals[0].moment - offset))
        # The log's moments lie on the ends of its steps, and the same step's may be a little early here.
        while arrivals and arrivals[0].moment <= clock.now() + offset + early:
            arrivals.popleft().add_to(engine)
        finished = engine.step()
        outputs += finished
        ahead += [ended[o.request_id] - (o.timeline.last_token or 0.0) for o in finished if o.request_id in ended]
    return outputs


def usual_step(log: Sequence[LoggedRequest]) -> float:
    """Seconds of a typical decode step: the median time per output token, or of what there is."""
    requests = timed(log)
    return median([r.tpot for r in requests if r.tpot is not None] or [r.ttft - r.queue for r in requests])


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
SPEEDS = tuple(per_mille / 1000 for per_mille in range(960, 1041, 5))
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

    def misfit(schedule: Schedule, constants: Constants) -> list[float]:
        return residuals(schedule, model_of(constants), noise)

    current = FittedConstants(prior, (), math.inf)
    for done in range(max_rounds):
        schedule = schedule_of(deployment.with_constants(current.constants), log)
        fitted = fit_constants(
            partial(misfit, schedule),
            prior,
            free,
            current.constants,
            spread=LOG_SPREAD,
            limits=REACHABLE,
        )
        # From the second round on half the way: a schedule made by too fast a device asks for a slow one, and the
        # two would alternate.
        constants = between(current.constants, fitted.constants, free) if done else fitted.constants
        before = step_seconds(model_of(current.constants), schedule.works)
        after = step_seconds(model_of(constants), schedule.works)
        current = FittedConstants(constants, fitted.decided, fitted.cost)
        if fmean(abs(new / old - 1) for new, old in zip(after, before)) < CLOSE_ENOUGH:
            break
    return current


def residuals(schedule: Schedule, model: StepTimeModel, noise: float) -> list[float]:
    """[2 N] how far sums of step times are from the log, in units of the noise, outliers reined in.

    Args:
        noise: seconds, beside NOISE_SHARE of each duration.
    """
    pairs = zip(schedule.simulated(model), schedule.measured)
    off = [(simulated - measured) / (noise + NOISE_SHARE * measured) for simulated, measured in pairs]
    # Squared, that is the Cauchy loss.
    return [math.copysign(OUTLIER * math.sqrt(math.log1p((each / OUTLIER) ** 2)), each) for each in off]


def between(a: Constants, b: Constants, names: Sequence[str]) -> Constants:
    """The geometric mean of some constants of two sets."""
    return b.replace(**{name: (getattr(a, name) * getattr(b, name)) ** 0.5 for name in names})


def set_speed(deployment: Deployment, log: Sequence[LoggedRequest], free: Sequence[str]) -> tuple[Constants, float]:
    """Make all fitted constants slower or faster by one factor, so that most requests of the log take as long as they
    did when it is served freely, not in lockstep. One that only one world preempted hardly counts.

    Returns:
        The constants, and the factor: how much longer everything takes.
    """
    measured = {request.request_id: request for request in timed(log)}
    constants = deployment.profile.constants

    def at(factor: float) -> Constants:
        changed = slower(constants, factor, free)
        return changed.replace(**{name: min(getattr(changed, name), most) for name, most in REACHABLE.items()})

    def error(factor: float) -> float:
        served = serve_log(deployment.with_constants(at(factor)), log)
        pairs = [(output.timeline, measured[output.request_id]) for output in served if output.request_id in measured]
        e2e = [abs((line.e2e or 0.0) / real.e2e - 1) for line, real in pairs]
        tpot = [abs(line.tpot / real.tpot - 1) for line, real in pairs if line.tpot and real.tpot]
        return median(e2e) + median(tpot or [0.0])

    best = min(sorted(SPEEDS, key=lambda factor: abs(factor - 1)), key=error)
    return at(best), best


def calibrate_from_requests(
    log_path: Path, deployment: Deployment, model: str
) -> tuple[Profile, dict[str, SummaryDict]]:
    """Fit constants to a server's log of requests.

    Args:
        deployment: as the server was configured. Its profile's constants are where a fit starts, and where
            those stay that the log does not show.
        model: its name, for the record.
    Returns:
        The profile, and what it makes of that log: `summary`, `measured`, `error_percent`.
    Raises:
        RecordingError: the log cannot be read, or has no time stamps.
        PricingError: a request does not fit the KV pool.
    """
    log = read_requests_log(log_path)
    tp = deployment.placement.tp
    free = (*GPU_CONSTANTS, *(LINK_CONSTANTS if tp > 1 else ()))
    fitted = fit_to_log(deployment, log, free)
    constants, factor = set_speed(deployment.with_constants(fitted.constants), log, free)
    outputs = serve_log(deployment.with_constants(constants), log)
    simulated, measured, errors = compare_with_log(outputs, log)
    provenance = {
        "source": f"{len(timed(log))} requests of {log_path.name}",
        "model": model,
        "tp": tp,
        "weight_dtype": deployment.placement.weight_dtype,
        "kv_blocks": deployment.num_kv_blocks,
        "fitted": list(free),
        "decided_by_data": list(fitted.decided),
        "time_factor": factor,
        "date": today(),
        "error_percent_on_the_same_log": errors,
    }
    report = {"summary": simulated, "measured": measured, "error_percent": errors}
    profile = Profile(hardware=deployment.profile.hardware, constants=constants, provenance=provenance)
    return profile, report

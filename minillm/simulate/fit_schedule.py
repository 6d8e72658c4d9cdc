"""Which steps a log's server must have run: the schedule behind request stamps.

No step of the log was timed, but the scheduler is known, and the log says when each request was let in and
when it was done. So the log is served once more *in lockstep*: a request joins when the log says that it was
scheduled, not when it was queued, and the simulated clock is set by the log's each time a request ends. The
schedule then hardly depends on how fast the simulated device is. That matters: full of KV cache, a server that
is one percent faster lets in other requests, and preempts others.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from minillm.core.batch import ScheduledBatch
from minillm.core.errors import PricingError
from minillm.core.known import known
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock
from minillm.frontend.outputs import RequestOutput
from minillm.runner.simulated import StepPrice, StepWatch
from minillm.simulate.deployment import Deployment
from minillm.simulate.fit import stack, step_seconds
from minillm.simulate.replay import arrivals_of
from minillm.simulate.requests_log import LoggedRequest, timed
from minillm.simulate.roofline import StepTime, StepTimeModel, StepWork

LAST_ENDS = 9
"""The clocks are compared by the median of so many requests that ended last: some were preempted in one world only."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which step did what, and what the log says of the same stretches of time."""

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

    @property
    def measured(self) -> np.ndarray:
        """[2 N] seconds: all prefills, then all decodes."""
        return np.concatenate([self.prefill, self.decode])

    def simulated(self, model: StepTimeModel) -> np.ndarray:
        """[2 N] seconds of the same, with steps priced by a model."""
        until = np.concatenate([[0.0], np.cumsum(step_seconds(model, self.works))])
        return np.concatenate([until[self.first] - until[self.scheduled], until[self.last] - until[self.first]])


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

    def steps_until(stamps: Sequence[float]) -> np.ndarray:
        return np.array([bisect_right(ends, stamp) for stamp in stamps])

    return Schedule(
        works=stack(works),
        scheduled=steps_until([known(t.scheduled) for t in ours]),
        first=steps_until([known(t.first_token) for t in ours]),
        last=steps_until([known(t.last_token) for t in ours]),
        prefill=np.array([request.ttft - request.queue for request in logged]),
        decode=np.array([request.e2e - request.ttft for request in logged]),
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
    ended = {request.request_id: known(request.last_token) for request in timed(log)}
    early = usual_step(log) / 4
    let_in = [request if request.scheduled is None else replace(request, queued=request.scheduled) for request in log]
    arrivals = deque(arrivals_of(sorted(let_in, key=lambda request: request.queued)))
    ahead: deque[float] = deque([0.0], maxlen=LAST_ENDS)
    outputs: list[RequestOutput] = []
    while arrivals or engine.has_unfinished:
        offset = median(ahead)
        if not engine.has_unfinished:
            clock.advance_to(max(clock.now(), arrivals[0].moment - offset))
        # The log's moments lie on the ends of its steps, and the same step's may be a little early here.
        while arrivals and arrivals[0].moment <= clock.now() + offset + early:
            arrival = arrivals.popleft()
            params = SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True)
            engine.add_request(arrival.prompt_token_ids, params, request_id=arrival.request_id, stream=False)
        finished = engine.step()
        outputs += finished
        ahead += [ended[o.request_id] - known(o.timeline.last_token) for o in finished if o.request_id in ended]
    return outputs


def usual_step(log: Sequence[LoggedRequest]) -> float:
    """Seconds of a typical decode step: the median time per output token, or of what there is."""
    requests = timed(log)
    return median([r.tpot for r in requests if r.tpot is not None] or [r.ttft - r.queue for r in requests])

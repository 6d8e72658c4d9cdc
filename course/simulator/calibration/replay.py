"""Serves recorded arrivals on a simulated engine, and compares with what really happened."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from course.simulator.calibration.requests_log import LoggedRequest
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.fast_forward import FastForwardCore
from course.simulator.latencies import SummaryDict, error_percent, summarize_latencies, summary_of
from minillm.core.params import SamplingParams
from minillm.core.timeline import Clock, VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will come."""

    request_id: str
    moment: float
    """When it reaches the server, clock seconds."""
    prompt_token_ids: Sequence[int]
    output_tokens: int
    priority: int = 0
    """Lower is served earlier, with scheduling_order="priority"."""
    tenant: str = ""

    def add_to(self, engine: Engine, arrival: float | None = None) -> None:
        """Queue it, stamped with `arrival`; None = now."""
        engine.add_request(
            self.prompt_token_ids,
            SamplingParams(temperature=0, max_tokens=self.output_tokens, ignore_eos=True),
            request_id=self.request_id,
            priority=self.priority,
            tenant=self.tenant,
            arrival=arrival,
            stream=False,
        )


def arrivals_of(log: Sequence[LoggedRequest]) -> list[Arrival]:
    """The log's requests with made-up prompts. A log has lengths only, so no two share a token."""
    arrivals, first = [], 0
    for request in log:
        prompt = range(first, first + request.input_tokens)
        first += request.input_tokens
        arrivals.append(Arrival(request.request_id, request.queued, prompt, request.output_tokens))
    return arrivals


def run(engine: Engine, arrivals: Sequence[Arrival], *, stamped_by_loop: bool = False) -> list[RequestOutput]:
    """Serve everything, simulated or for real; returns the finished requests in the order in which they ended.

    Args:
        arrivals: in order of their moments.
        stamped_by_loop: count a request as arrived when the engine's loop next looks, between two steps, as
            vLLM's own stamps do. Otherwise waiting for the running step is part of its time.
    Raises:
        RequestError: a request can never be served.
        PricingError: it doesn't fit the window or the KV pool.
    """
    limit = engine.context_limit
    for arrival in arrivals:
        if len(arrival.prompt_token_ids) + arrival.output_tokens > limit:
            raise PricingError(
                f"request {arrival.request_id!r} has {len(arrival.prompt_token_ids)} + {arrival.output_tokens} tokens, "
                f"and window or KV pool hold {limit}: raise max_model_len, the KV blocks, or leave it out"
            )
    finished: list[RequestOutput] = []
    upcoming = deque(arrivals)
    while upcoming or engine.has_unfinished:
        if not engine.has_unfinished:
            wait_until(engine.clock, upcoming[0].moment)
        now = engine.clock.now()
        while upcoming and upcoming[0].moment <= now:
            arrival = upcoming.popleft()
            arrival.add_to(engine, now if stamped_by_loop else arrival.moment)
        until = upcoming[0].moment if upcoming else math.inf
        if not (isinstance(engine.core, FastForwardCore) and engine.core.fast_forward_until(until)):
            finished += engine.step()
    return finished


def wait_until(clock: Clock, moment: float) -> None:
    """Let time pass; a virtual clock jumps."""
    if isinstance(clock, VirtualClock):
        clock.advance_to(max(clock.now(), moment))
    else:
        time.sleep(max(moment - clock.now(), 0.0))


def serve_log(deployment: Deployment, log: Sequence[LoggedRequest]) -> list[RequestOutput]:
    """The log's requests, served; in the order in which they ended."""
    return run(deployment.fast_engine(VirtualClock()), arrivals_of(log), stamped_by_loop=True)


def compare_with_log(
    outputs: Sequence[RequestOutput], log: Sequence[LoggedRequest]
) -> tuple[SummaryDict, SummaryDict, SummaryDict]:
    """Over the requests that the log has times of: the simulated summary, the measured one, the error in percent."""
    measured = {request.request_id: request for request in log if request.is_timed}
    simulated = summary_of(output for output in outputs if output.request_id in measured)
    real = summarize_latencies([(r.ttft, r.tpot, r.e2e, r.queue) for r in measured.values()])
    return simulated, real, error_percent(simulated, real)

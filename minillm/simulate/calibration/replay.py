"""Serves recorded arrivals on a simulated engine, and compares with what really happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.core.errors import PricingError
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.observe.records import as_records
from minillm.observe.speculation import SpeculationSummary
from minillm.runner.simulated import StepWatch
from minillm.simulate.calibration.requests_log import LoggedRequest, read_requests_log
from minillm.simulate.deployment import Deployment
from minillm.simulate.latencies import (
    DIGITS,
    SummaryDict,
    error_percent,
    rates,
    row_of,
    summarize_latencies,
    summary_of,
)
from minillm.simulate.progress import Progress


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

    def add_to(self, engine: Engine, arrival: float | None = None) -> None:
        """Queue it, stamped with `arrival`; None = now."""
        engine.add_request(
            self.prompt_token_ids,
            SamplingParams(temperature=0, max_tokens=self.output_tokens, ignore_eos=True),
            request_id=self.request_id,
            priority=self.priority,
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


def run(
    engine: Engine, clock: VirtualClock, arrivals: Sequence[Arrival], *, stamped_by_loop: bool = False
) -> list[RequestOutput]:
    """Serve everything; returns the finished requests in the order in which they ended.

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
    upcoming = 0
    while upcoming < len(arrivals) or engine.has_unfinished:
        if not engine.has_unfinished:
            clock.advance_to(max(clock.now(), arrivals[upcoming].moment))
        now = clock.now()
        while upcoming < len(arrivals) and arrivals[upcoming].moment <= now:
            arrivals[upcoming].add_to(engine, now if stamped_by_loop else arrivals[upcoming].moment)
            upcoming += 1
        finished += engine.step()
    return finished


def serve_log(
    deployment: Deployment, log: Sequence[LoggedRequest], watch: StepWatch | None = None
) -> list[RequestOutput]:
    """The log's requests, served; in the order in which they ended."""
    clock = VirtualClock()
    return run(deployment.fast_engine(clock, watch), clock, arrivals_of(log), stamped_by_loop=True)


def compare_with_log(
    outputs: Sequence[RequestOutput], log: Sequence[LoggedRequest]
) -> tuple[SummaryDict, SummaryDict, SummaryDict]:
    """Over the requests that the log has times of: the simulated summary, the measured one, the error in percent."""
    measured = {request.request_id: request for request in log if request.is_timed}
    simulated = summary_of(output for output in outputs if output.request_id in measured)
    real = summarize_latencies([(r.ttft, r.tpot, r.e2e, r.queue) for r in measured.values()])
    return simulated, real, error_percent(simulated, real)


def simulate_log(
    deployment: Deployment, path: Path, per_request: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Serve a log, and report: `summary`, `throughput`, `virtual_s`, `speculation` if it is on; with a timed log also
    `measured` and `error_percent`; with `per_request` also `requests`, in the log's order.

    Raises:
        RecordingError: the log cannot be read.
        PricingError: a request can never be served.
    """
    log = read_requests_log(path)
    outputs = serve_log(deployment, log, progress.begin(f"{len(log)} requests", log[-1].queued) if progress else None)
    report: dict[str, Any] = {
        "summary": summary_of(outputs),
        "throughput": rates(outputs),
        "virtual_s": round(max(output.timeline.finished or 0.0 for output in outputs), DIGITS),
    }
    if deployment.config.speculative is not None:
        report["speculation"] = SpeculationSummary.of_requests(outputs).to_dict()
    if any(request.is_timed for request in log):
        _, report["measured"], report["error_percent"] = compare_with_log(outputs, log)
    if per_request:
        order = {request.request_id: position for position, request in enumerate(log)}
        outputs.sort(key=lambda output: order[output.request_id])
        report["requests"] = [row_of(record) for output in outputs for record in as_records([output])]
    return report

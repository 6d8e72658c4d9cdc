"""Feeds arrivals to a simulated engine, and collects what each request went through."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minillm.core.errors import PricingError
from minillm.core.known import known
from minillm.core.params import SamplingParams
from minillm.core.timeline import Timeline, VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.observe.speculation import SpeculationSummary
from minillm.runner.simulated import StepWatch
from minillm.simulate.calibration.requests_log import LoggedRequest, read_requests_log
from minillm.simulate.cost.deployment import Deployment
from minillm.simulate.progress import Progress

DIGITS = 9
"""Times are reported to the nanosecond."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will come."""

    request_id: str
    moment: float
    """When it reaches the front door, clock seconds."""
    prompt_token_ids: Sequence[int]
    output_tokens: int
    priority: int = 0
    """Lower is served earlier, with scheduling_order="priority"."""


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
        PricingError: the engine got stuck (a bug).
    """
    for arrival in arrivals:
        limit = engine.context_limit
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
            arrival = arrivals[upcoming]
            engine.add_request(
                arrival.prompt_token_ids,
                SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True),
                request_id=arrival.request_id,
                priority=arrival.priority,
                arrival=now if stamped_by_loop else arrival.moment,
                stream=False,
            )
            upcoming += 1
        finished += engine.step()
    return finished


@dataclass(frozen=True, slots=True)
class Spread:
    """One latency over all requests, seconds; None where no request has it."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, samples: Sequence[float | None]) -> "Spread":
        """Percentiles by linear interpolation. In plain Python: the same bits on every machine."""
        values = sorted(sample for sample in samples if sample is not None)
        if not values:
            return cls(None, None, None, None)
        mean = math.fsum(values) / len(values)
        return cls(*(round(number, DIGITS) for number in (mean, *(percentile(values, p) for p in (50, 90, 99)))))

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending values, by linear interpolation between the two nearest."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


METRICS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")


def row_of(output: RequestOutput) -> dict[str, Any]:
    """One finished request, ready for JSON."""
    timeline = output.timeline
    return {
        "request_id": output.request_id,
        "input_toks": len(output.prompt_token_ids),
        "output_toks": timeline.num_tokens,
        "queued_s": round(timeline.arrival, DIGITS),
        **{name: value if value is None else round(value, DIGITS) for name, value in latencies(timeline).items()},
    }


def latencies(timeline: Timeline) -> dict[str, float | None]:
    """The four metrics of a finished request, seconds."""
    queue = None if timeline.scheduled is None else timeline.scheduled - timeline.arrival
    return dict(zip(METRICS, (timeline.ttft, timeline.tpot, timeline.e2e, queue)))


def summary_of(outputs: Sequence[RequestOutput]) -> dict[str, dict[str, float | None]]:
    """`{ttft_s, tpot_s, e2e_s, queue_s}` to `{mean, p50, p90, p99}`."""
    samples = [latencies(output.timeline) for output in outputs]
    return {name: Spread.of([sample[name] for sample in samples]).to_dict() for name in METRICS}


def measured_summary(log: Sequence[LoggedRequest]) -> dict[str, dict[str, float | None]]:
    """The same of a log whose requests are timed."""
    samples: tuple[list[float | None], ...] = (
        [r.ttft for r in log],
        [r.tpot for r in log],
        [r.e2e for r in log],
        [r.queue for r in log],
    )
    return {name: Spread.of(values).to_dict() for name, values in zip(METRICS, samples)}


def error_percent(simulated: dict[str, Any], measured: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """How far each simulated number is from the measured one, in percent of it."""
    return {
        name: {
            part: None if not wanted or simulated[name][part] is None
            else round(100 * (simulated[name][part] / wanted - 1), 2)
            for part, wanted in measured[name].items()
        }
        for name in measured
    }  # fmt: skip


def throughput_of(outputs: Sequence[RequestOutput]) -> dict[str, float]:
    """Rates over some finished requests."""
    return rates([(output.timeline, len(output.prompt_token_ids)) for output in outputs])


def rates(finished: Sequence[tuple[Timeline, int]]) -> dict[str, float]:
    """Requests and tokens per second, from the first arrival to the last end.

    Args:
        finished: each request's stamps, and its prompt tokens.
    """
    if not finished:
        return dict.fromkeys(("requests_per_s", "input_tokens_per_s", "output_tokens_per_s"), 0.0)
    timelines = [timeline for timeline, _ in finished]
    seconds = max(known(t.finished) for t in timelines) - min(t.arrival for t in timelines)
    amounts = {
        "requests_per_s": len(finished),
        "input_tokens_per_s": sum(prompt for _, prompt in finished),
        "output_tokens_per_s": sum(timeline.num_tokens for timeline in timelines),
    }
    return {name: round(amount / seconds, 6) if seconds > 0 else 0.0 for name, amount in amounts.items()}


def serve_log(
    deployment: Deployment, log: Sequence[LoggedRequest], watch: StepWatch | None = None
) -> list[RequestOutput]:
    """The log's requests, served; in the order in which they ended."""
    clock = VirtualClock()
    engine = deployment.fast_engine(clock, watch)
    return run(engine, clock, arrivals_of(log), stamped_by_loop=True)


def compare_with_log(
    outputs: Sequence[RequestOutput], log: Sequence[LoggedRequest]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Over the requests that the log has times of: the simulated summary, the measured one, the error in percent."""
    measured = {request.request_id: request for request in log if request.is_timed}
    simulated = summary_of([output for output in outputs if output.request_id in measured])
    real = measured_summary(list(measured.values()))
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
    watch = progress.begin(f"{len(log)} requests", log[-1].queued) if progress else None
    outputs = serve_log(deployment, log, watch)
    report: dict[str, Any] = {
        "summary": summary_of(outputs),
        "throughput": throughput_of(outputs),
        "virtual_s": round(max(known(output.timeline.finished) for output in outputs), DIGITS),
    }
    if deployment.config.speculative is not None:
        report["speculation"] = SpeculationSummary.of_requests(outputs).to_dict()
    if any(request.is_timed for request in log):
        _, report["measured"], report["error_percent"] = compare_with_log(outputs, log)
    if per_request:
        order = {request.request_id: place for place, request in enumerate(log)}
        report["requests"] = [row_of(output) for output in sorted(outputs, key=lambda o: order[o.request_id])]
    return report
